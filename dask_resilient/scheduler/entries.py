"""What is known of one partition: where it stands, where its copy lies, and what is under way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dask_resilient.core.manifest import Place, digest
from dask_resilient.core.outcome import SaveState
from dask_resilient.core.shelf import Shelf

COUNTED = frozenset({"name", "state", "late", "place", "nbytes"})
"""What the tally depends on."""


class Tally:
    """Counts of where partitions stand, kept as that changes.

    Who looks does so once a second; counting 100,000 entries each time held the scheduler up for 40 ms.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        """By name: entries by state, those that are late and durable as ``late``, and the bytes of copies that no shelf
        counts as ``nbytes``."""
        self.durable: Counter[str] = Counter()
        """Entries whose copy is their milestone's own, by milestone."""

    def take(self, entry: Entry) -> None:
        """Count an entry as it stands now."""
        late = entry.late and entry.place is not None
        state = "late" if late else str(entry.state)
        nbytes = entry.nbytes if entry.place is not None and (entry.late or entry.shelf is None) else 0
        durable = entry.milestone if entry.state is SaveState.DURABLE and not entry.late else ""
        standing = (entry.name, state, nbytes, durable)
        if standing != entry.standing:
            self.drop(entry)
            self._add(standing, 1)
            entry.standing = standing

    def drop(self, entry: Entry) -> None:
        """Count an entry no more."""
        if entry.standing is not None:
            self._add(entry.standing, -1)
            entry.standing = None

    def _add(self, standing: tuple[str, str, int, str], sign: int) -> None:
        name, state, nbytes, durable = standing
        counts = self.counts.setdefault(name, Counter())
        counts[state] += sign
        counts["nbytes"] += sign * nbytes
        if durable:
            self.durable[durable] += sign
            if not self.durable[durable]:
                del self.durable[durable]


@dataclass(slots=True)
class Entry:
    """What is known of one marked partition while its task is known to the scheduler."""

    key: Any
    name: str
    index: str
    milestone: str
    npartitions: int
    task: Any
    """The scheduler's `TaskState`; another one under the same key is another partition, unless there is a shelf. None
    where the key was forgotten meanwhile."""
    shelf: Shelf | None = None
    """What the store has of the milestone, if other runs know it."""
    state: SaveState = SaveState.SAVING
    generation: int = 0
    attempt: str | None = None
    """The attempt that may be written now."""
    late: bool = False
    """Whether the copy, or the attempt at one, was taken from a worker that was to leave: for this run only."""
    beside: str = ""
    """The directory of late copies."""
    held: tuple[str, str, int] | None = None
    """Worker, attempt and size of an attempt that waits for the second read of a copy that looked damaged."""
    place: Place | None = None
    """The durable copy."""
    suspect: bool = False
    """A load found the copy damaged; not used until a second read has judged."""
    refused: bool = False
    """A load found something foreign there, or loads of it ended as errors: not used in this run."""
    bad_loads: float = 0
    """Loads that ended badly; those that no copy may be to blame for count `UNBEGUN`."""
    loading: str = ""
    """Worker that has begun the load under way."""
    ended: bool = False
    """Whether the worker of the load under way has said that it brought nothing."""
    avoid: set[str] = field(default_factory=set)
    """Workers that could not reach the copy."""
    nbytes: int = 0
    stored_nbytes: int = 0
    worker: str = ""
    device: str = ""
    """On which the copy was made, if this run made it."""
    made: float = 0.0
    """When that was, UNIX seconds."""
    seconds: float = 0.0
    reason: str = ""
    standing: tuple[str, str, int, str] | None = None
    """As the tally counts it: name, state, bytes, milestone."""
    tally: Tally | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep the tally."""
        object.__setattr__(self, name, value)
        if name in COUNTED and (tally := getattr(self, "tally", None)) is not None:
            tally.take(self)

    def where(self, attempt: str) -> Place:
        """Give the place of an attempt; a late one is no part of the milestone, so it lies beside it."""
        if self.late:
            return Place(self.beside, self.index, 0 if self.shelf else self.generation, attempt)
        return Place(self.milestone, self.index, self.generation, attempt)

    @property
    def busy(self) -> bool:
        """Whether something is under way that does not need the task: a save, or the second read of a copy."""
        return self.attempt is not None or self.held is not None or self.suspect

    @property
    def digest_of_key(self) -> str | None:
        """What the receipt of the copy must say of the key; None where another run may have made it, under another."""
        return None if self.shelf is not None and not self.late else digest(repr(self.key))

    @property
    def usable(self) -> bool:
        """Whether the key may be loaded from the copy."""
        return self.place is not None and not self.suspect and not self.refused

    def not_wanted(self, refused: str) -> None:
        """Take in that the key was computed and is not saved, as a copy is there or for the reason that is given."""
        if not refused:
            self.try_again()
        elif self.place is None:
            self.state, self.reason = SaveState.NOT_SAVED, refused

    def try_again(self) -> None:
        """Take in that the key was computed: workers that could not reach the copy this time may be asked next time.

        Without this a store that was away for a moment would never be read from again where there is one worker. Loads
        that cost a worker stay counted.
        """
        self.bad_loads -= len(self.avoid)
        self.avoid.clear()

    def refuse(self, reason: str) -> None:
        """Use the copy no more in this run; it stays where it is."""
        self.refused, self.state, self.reason = True, SaveState.FAILED, reason

    def to_dict(self) -> dict[str, Any]:
        """Give the row, plain types only."""
        names = ("name", "index", "nbytes", "stored_nbytes", "worker", "seconds", "reason", "late")
        return {
            **{name: getattr(self, name) for name in names},
            "key": str(self.key),
            "state": str(self.state),
        }


def beside(milestone: str) -> str:
    """Give the directory of late copies of a milestone's partitions, and of those of keys that are no milestone."""
    return digest(milestone, "late")[:32]
