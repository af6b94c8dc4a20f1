"""From what the user typed to an open store: which path is meant, whose store it is, whether it keeps anything."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import uuid
from pathlib import Path
from urllib.parse import unquote

from dask_resilient.core.manifest import FORMAT
from dask_resilient.errors import Damaged, SettingError, StoreError
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import check_directories, create_if_absent, make_directories, read_small
from dask_resilient.store.posix import PosixStore
from dask_resilient.store.reading import STORE_JSON

DEFAULT = "dask-resilient-store"
KINDS = ("data", "commit", "revoked", "milestones", "runs", "devices")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SHARED = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "pvfs2"}
    | {"smb3", "smbfs", "virtiofs", "wekafs"}
)


def resolve(url: str | os.PathLike[str] | None, name: str = "store") -> str:
    """Give the absolute path that a store's address means here. Called on the client, whose directory counts.

    Parameters
    ----------
    url
        A path, a ``file://`` URL, or None for ``./dask-resilient-store``.
    name
        What errors call it.

    Raises
    ------
    SettingError
        If it is no address of a directory.
    """
    text = DEFAULT if url is None else _text(url, name)
    if found := _SCHEME.match(text):
        if found[1].lower() != "file":
            raise SettingError(f"{name}={text!r}: {found[1]} is not supported yet; give a path that every machine sees")
        host, slash, path = text[found.end() :].partition("/")
        if host not in {"", "localhost"} or not slash:
            raise SettingError(
                f"{name}={text!r}: a file URL names no other host and an absolute path, file:///like/this"
            )
        text = _text("/" + unquote(path), name)
    return os.path.abspath(os.path.expanduser(text))


def _text(url: str | os.PathLike[str], name: str) -> str:
    try:
        text = os.fsdecode(url)
    except TypeError as e:
        raise SettingError(f"{name}={url!r}: give a path, a file:// URL, or None") from e
    if not text.strip() or "\0" in text:
        raise SettingError(f"{name}={text!r}: give a path, a file:// URL, or None")
    return text


def resolve_directory(path: str, name: str) -> str:
    """Give the absolute path of a directory of the scheduler, which need not be there yet, nor be seen from here.

    Parameters
    ----------
    path, name
        As `resolve` takes them.

    Raises
    ------
    SettingError
        If it is no address of a directory, or something else is there on this machine.
    """
    text = resolve(path, name)
    try:
        mode = os.stat(text).st_mode
    except NotADirectoryError:
        mode = stat.S_IFREG  # what stands above it is no directory
    except OSError:
        return text  # not there, or not for this user: the scheduler tries it out
    if not stat.S_ISDIR(mode):
        raise SettingError(f"{name}={path!r}: {text!r} is no directory; give one that the scheduler may write to")
    return text


def open_store(
    url: str | os.PathLike[str] | None, *, create: bool, token: str | None = None, calls: Calls | None = None
) -> PosixStore:
    """Open a store, and try out that it keeps what is created in it.

    Parameters
    ----------
    url
        What `resolve` takes.
    create
        Whether to make it where it is missing: True on the scheduler, False on workers, which must find it.
    token
        What its ``store.json`` must say; None accepts any.
    calls
        The system calls; tests pass their own.

    Raises
    ------
    StoreError
        If this process cannot use it, in one line.
    """
    root = resolve(url)
    calls = calls or Calls()
    try:
        return _open(calls, root, token, create=create)
    except StoreError:
        raise
    except OSError as e:
        advice = "choose a directory that can be written"
        raise StoreError(e.errno, f"{root!r} cannot be used as a store: {e.strerror or e}; {advice}") from e


def _open(calls: Calls, root: str, token: str | None, *, create: bool) -> PosixStore:
    if create:
        _make(calls, root)
    found = token_of(calls, root)
    if token is not None and token != found:
        raise StoreError(f"{root!r}: this process reads token {found!r}, the scheduler reads {token!r}: another disk")
    if create:
        _make_kinds(calls, root)
    for kind in KINDS:
        try:
            check_directories(calls, root, kind)
        except Damaged as e:
            raise StoreError(errno.ELOOP, f"{root!r} cannot be used as a store: {e}") from e
    return PosixStore(root, found, _try_out(calls, root), calls)


def _make(calls: Calls, root: str) -> None:
    """Make root and ``store.json`` where they are missing; of two that do so at once, one token wins."""
    make_directories(calls, root)
    names = calls.names(root)
    if STORE_JSON in names:
        calls.fsync_directory(root)  # the same goes for this name
        return
    # A fresh file system has lost+found at its top; drafts are of another scheduler that is just making the store.
    strange = sorted(n for n in names if n != "lost+found" and not n.startswith(f".{STORE_JSON}."))
    if strange:
        raise StoreError(
            f"{root!r} is no store and not empty (it has {strange[0]!r}); choose an empty or a new directory"
        )
    body = {"format": FORMAT, "token": uuid.uuid4().hex, "made_by": "dask-resilient"}
    try:
        create_if_absent(calls, root, STORE_JSON, json.dumps(body, indent=1).encode())
    except FileExistsError:
        calls.fsync_directory(root)


def _make_kinds(calls: Calls, root: str) -> None:
    for kind in KINDS:
        with contextlib.suppress(FileExistsError):
            calls.mkdir(f"{root}/{kind}")
    calls.fsync_directory(root)


def token_of(calls: Calls, root: str) -> str:
    """Read the token of the store at `root`.

    Raises
    ------
    StoreError
        If there is no store, or it is of another format.
    OSError
        If it cannot be read.
    """
    try:
        body = json.loads(read_small(calls, f"{root}/{STORE_JSON}"))
        version, token = body["format"], body["token"]
    except FileNotFoundError as e:
        what = f"has no {STORE_JSON}" if os.path.isdir(root) else "does not exist"
        raise StoreError(errno.ENOENT, f"{root!r} is no store that this process can see: it {what}") from e
    except (Damaged, ValueError, LookupError, TypeError, RecursionError) as e:
        raise StoreError(f"{root!r} is no store: {STORE_JSON} cannot be read ({e!r}); choose another directory") from e
    if version != FORMAT or not isinstance(token, str):
        raise StoreError(f"{root!r} has format {version!r}, this version of dask-resilient knows {FORMAT}; update it")
    return token


def _try_out(calls: Calls, root: str) -> str:
    """Create a file twice, see the second refused, and say what the store survives."""
    name = f"probe-{uuid.uuid4().hex}"
    create_if_absent(calls, root, name, b"first")
    try:
        with contextlib.suppress(FileExistsError):
            create_if_absent(calls, root, name, b"second")
            raise StoreError(f"{root!r}: this file system lets a name be created twice; choose another one")
    finally:
        calls.unlink(f"{root}/{name}")
    kind = _file_system(root)
    if kind in _SHARED or kind.startswith("fuse."):
        where, lost = f"shared file system ({kind})", "the loss of a worker and of this machine"
    else:
        where, lost = f"local path ({kind})", "the loss of a worker, not of this machine"
    return f"{where}; create-if-absent works; survives {lost}"


def _file_system(root: str) -> str:
    """Give the type of the file system that holds a path: that of the longest, then latest, mount point above it."""
    real = os.path.realpath(root) + "/"
    best = ("", "unknown")
    try:
        lines = Path("/proc/mounts").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:  # not Linux
        return best[1]
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), point).rstrip("/") + "/"
        if real.startswith(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
