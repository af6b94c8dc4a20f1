"""What a power cut may leave of a store: a record of its system calls, and every disk that they could have led to.

The disk is the least helpful one that POSIX allows. It has no journal: the content of a file is durable once the file
was synced, a name once its directory was, and what was not synced may be there or not, each on its own, in any order.

::

    recorder = Recorder(base)
    store = open_store(base / "store", create=True, calls=recorder)
    store.write(place, staged, facts)
    recorder.acknowledge(place)
    for crash in crashes(recorder.log, subsets=20):
        crash.materialise(empty_directory)  # open it anew, and compare with crash.acknowledged
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from dask_resilient.testing.recording import Step


@dataclass(slots=True, eq=False)
class File:
    """Content of a file, and how much of it a power cut leaves."""

    content: bytes = b""
    durable: int = 0


@dataclass(slots=True, eq=False)
class Directory:
    """Names as a process sees them, names as the disk has them, and the changes in between."""

    names: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)
    pending: list[tuple[str, str, File | Directory | None]] = field(default_factory=list)
    """Call, name, and what got the name; None where the name was taken away."""

    def change(self, call: str, name: str, node: File | Directory | None) -> None:
        """Give a name to something, or take it away."""
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.pending.append((call, name, node))

    def after(self, keeps: Callable[[str], bool]) -> dict[str, File | Directory]:
        """Give the names that are there if of the unsynced changes only some were made."""
        found = dict(self.durable)
        for call, name, node in self.pending:
            if not keeps(call):
                continue
            if node is None:
                found.pop(name, None)
            else:
                found[name] = node
        return found


class Disk:
    """The model: does one recorded step after the other."""

    def __init__(self) -> None:
        self.root = Directory()
        self.files: list[File] = []

    def do(self, step: Step) -> None:
        """Do one step of a log."""
        getattr(self, f"_{step[0]}")(*step[1:])

    def _directory(self, path: str) -> Directory:
        found = self.root
        for part in path.split("/"):
            if part not in {"", "."}:
                below = found.names[part]
                assert isinstance(below, Directory)
                found = below
        return found

    def _parent(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _change(self, call: str, path: str, node: File | Directory | None) -> None:
        parent, name = self._parent(path)
        parent.change(call, name, node)

    def _node(self, path: str) -> File | Directory:
        parent, name = self._parent(path)
        return parent.names[name]

    def _acknowledge(self, what: Hashable) -> None:
        pass

    def _create(self, path: str, number: int) -> None:
        self.files += [File() for _ in range(number + 1 - len(self.files))]
        self._change("create", path, self.files[number])

    def _write(self, number: int, content: bytes) -> None:
        self.files[number].content += content

    def _fdatasync(self, number: int) -> None:
        self.files[number].durable = len(self.files[number].content)

    def _fsync_directory(self, path: str) -> None:
        directory = self._directory(path)
        directory.durable = dict(directory.names)
        directory.pending.clear()

    def _link(self, source: str, target: str) -> None:
        self._change("link", target, self._node(source))

    def _rename(self, source: str, target: str) -> None:
        node = self._node(source)
        self._change("unlink", source, None)
        self._change("rename", target, node)

    def _unlink(self, path: str) -> None:
        self._change("unlink", path, None)

    def _mkdir(self, path: str) -> None:
        self._change("mkdir", path, Directory())

    def _rmdir(self, path: str) -> None:
        self._change("rmdir", path, None)


@dataclass(frozen=True, slots=True)
class Crash:
    """One disk that may be found after the power is back."""

    steps: int
    """How many steps of the log were begun and ended."""
    kind: str
    """What became of the unsynced ones."""
    files: tuple[tuple[str, bytes | None], ...]
    """Content by path, parents first; None is a directory."""
    acknowledged: frozenset[Hashable]

    def materialise(self, base: Path) -> None:
        """Make that disk in an empty directory."""
        for path, content in self.files:
            if content is None:
                (base / path).mkdir()
            else:
                (base / path).write_bytes(content)


Keeps = Callable[[str], bool]
Content = Callable[[File], bytes]
_SECTOR = 512


def _emptied(file: File) -> bytes:
    return file.content[: file.durable]


def _zeroed(file: File) -> bytes:
    return _emptied(file).ljust(len(file.content), b"\0")


def _whole(file: File) -> bytes:
    return file.content


KINDS: dict[str, tuple[Keeps, Content | None]] = {
    "everything unsynced is lost": (lambda _: False, _emptied),
    "names are kept, files are empty": (lambda _: True, _emptied),
    "names and sizes are kept, bytes are zero": (lambda _: True, _zeroed),
    "names and sizes are kept, bytes are those of another file": (lambda _: True, None),
    "only names by link and rename are kept, files are empty": (lambda call: call in {"link", "rename"}, _emptied),
    "only names by link and rename are kept, files are whole": (lambda call: call in {"link", "rename"}, _whole),
    "only removals are kept": (lambda call: call in {"unlink", "rmdir"}, _whole),
    "removals are lost": (lambda call: call not in {"unlink", "rmdir"}, _emptied),
    "everything is kept, only the process stops": (lambda _: True, _whole),
}
"""Which unsynced names are kept, and what unsynced bytes become; None = what another file of that size has there."""


def crashes(log: Iterable[Step], *, subsets: int, seed: int = 0, start: int = 0) -> Iterator[Crash]:
    """Give, for every prefix of a log, what each kind of power cut leaves, and some random subsets of what is unsynced.

    A disk that was given before, with the same promises made, is not given again.

    Parameters
    ----------
    log
        What a `Recorder` recorded, or a change of it.
    subsets
        How many random subsets per prefix.
    seed
        Of those subsets.
    start
        Steps that are done before the first crash.
    """
    disk = Disk()
    seen: set[tuple[Any, ...]] = set()
    acknowledged: frozenset[Hashable] = frozenset()
    for steps, step in enumerate([("acknowledge", None), *log]):
        disk.do(step)
        if step[0] == "acknowledge" and step[1] is not None:
            acknowledged |= {step[1]}
        if steps < start:
            continue
        for kind, keeps, content in _ways(disk, subsets, f"{seed}-{steps}"):
            files = tuple(_files(disk.root, "", keeps, _once(content)))
            if (files, acknowledged) not in seen:
                seen.add((files, acknowledged))
                yield Crash(steps, kind, files, acknowledged)


def _ways(disk: Disk, subsets: int, seed: str) -> Iterator[tuple[str, Keeps, Content]]:
    for kind, (keeps, content) in KINDS.items():
        yield kind, keeps, content or partial(_stale, disk)
    for n in range(subsets):
        random = Random(f"{seed}-{n}")  # noqa: S311 - a choice of cases, not a secret
        share = random.choice((0.1, 0.5, 0.9))
        yield (
            f"random subset {n}",
            partial(_by_chance, random, share),
            partial(_torn, disk, random),
        )


def _by_chance(random: Random, share: float, _: str) -> bool:
    return random.random() < share


def _once(content: Content) -> Content:
    """Choose once for each file: one with two names has one content."""
    found: dict[File, bytes] = {}

    def chosen(file: File) -> bytes:
        if file not in found:
            found[file] = content(file)
        return found[file]

    return chosen


def _files(directory: Directory, path: str, keeps: Keeps, content: Content) -> Iterator[tuple[str, bytes | None]]:
    for name, node in sorted(directory.after(keeps).items()):
        if isinstance(node, File):
            yield path + name, content(node)
        else:
            yield path + name, None
            yield from _files(node, f"{path}{name}/", keeps, content)


def _stale(disk: Disk, file: File) -> bytes:
    size = len(file.content)
    others = (other.content for other in disk.files if other is not file and len(other.content) >= size)
    return (_emptied(file) + next(others, b"\xa5" * size)[file.durable :])[:size]


def _torn(disk: Disk, random: Random, file: File) -> bytes:
    """Take each unsynced sector as it was written, as zeros, or as another file has it, up to some length."""
    ways = (file.content, _zeroed(file), _stale(disk, file))
    size = random.choice((file.durable, len(file.content), random.randint(file.durable, len(file.content))))
    found = _emptied(file)
    while len(found) < size:
        end = min(size, len(found) + _SECTOR)
        found += random.choice(ways)[len(found) : end]
    return found
