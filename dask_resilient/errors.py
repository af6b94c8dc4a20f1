"""Every exception and warning of the package, in one tree.

::

    ResilienceError                   anything this package raises on purpose
    ├── SettingError (ValueError)         a setting or an argument that cannot work
    ├── UnsupportedType (TypeError)       something that is no Dask collection was marked
    ├── NotInstalledError (LookupError)   no plugin runs on this scheduler, or a node lacks the package
    ├── NotStored (LookupError)           no such milestone, or partitions of it are missing
    ├── StoreError (OSError)              the store as a whole cannot be used
    ├── ChangedWhileWriting               the value changed between its task and the end of the write
    └── LoadError                         one stored partition could not be given back
        ├── Unreachable (OSError)         it may be intact: try elsewhere, or recompute
        ├── Damaged                       it is absent or differs from its receipt
        └── Foreign                       it belongs to another milestone, index or schema

    ResilienceWarning (UserWarning)   something protects less than it was asked to

Errors are grouped by what a handler would do; each also derives from the builtin that people already catch.
"""

from __future__ import annotations

__all__ = [
    "ChangedWhileWriting",
    "Damaged",
    "Foreign",
    "LoadError",
    "NotInstalledError",
    "NotStored",
    "ResilienceError",
    "ResilienceWarning",
    "SettingError",
    "StoreError",
    "Unreachable",
    "UnsupportedType",
]


class ResilienceError(Exception):
    """Base of everything that dask-resilient raises on purpose."""


class SettingError(ResilienceError, ValueError):
    """A setting or an argument has a value that cannot work."""


class UnsupportedType(ResilienceError, TypeError):
    """The object is no Dask collection, so it has no partitions to keep."""


class NotInstalledError(ResilienceError, LookupError):
    """The plugin does not run on this scheduler, or a node lacks the package."""


class NotStored(ResilienceError, LookupError):
    """There is no such milestone in the store, or partitions of it are missing."""

    def __str__(self) -> str:
        """Give the sentence without the quotes that a `LookupError` of one word would have."""
        return str(self.args[0]) if self.args else ""


class StoreError(ResilienceError, OSError):
    """The store as a whole cannot be used; nothing is known about single partitions."""

    def __str__(self) -> str:
        """Give the sentence; the number stays in ``errno``."""
        return self.strerror or super().__str__()


class ChangedWhileWriting(ResilienceError):
    """The memory of a staged partition changed before it was written; nothing of it was committed."""


class LoadError(ResilienceError):
    """One stored partition could not be given back."""


class Unreachable(LoadError, OSError):
    """The copy could not be read here and now; it may be intact."""

    def __str__(self) -> str:
        """Give the sentence; the number stays in ``errno``."""
        return self.strerror or super().__str__()


class Damaged(LoadError):
    """The copy is absent, or its bytes differ from what its receipt says."""


class Foreign(LoadError):
    """What lies there belongs to another milestone, index or schema."""


class ResilienceWarning(UserWarning):
    """Something protects less than it was asked to; the job goes on."""
