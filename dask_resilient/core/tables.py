"""The tables of XIDs and CUDA errors with the rows that a user's file changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dask_resilient.core import cuda_errors, xid
from dask_resilient.errors import SettingError

SECTIONS = ("xid", "cuda")


@dataclass(frozen=True, slots=True)
class Tables:
    """Both tables."""

    xids: Mapping[int, xid.XidRow]
    cuda: Mapping[int, cuda_errors.CudaRow]

    @classmethod
    def of(cls, rules: Mapping[str, Any] | None) -> Self:
        """Give the tables that a file of rules makes of ours.

        A number that has no row gets one, which starts as what numbers without a row are taken for.

        Parameters
        ----------
        rules
            What the file says, ``{"file": its path, "xid": {79: {"class": "drain"}}, "cuda": {...}}``; None is no file.

        Raises
        ------
        SettingError
            For a section or a field that does not exist, for a row whose code is no number, or a value that cannot be;
            the message names it.
        """
        rules = rules or {}
        file = str(rules.get("file", ""))
        for name in rules:
            if name not in (*SECTIONS, "file"):
                raise SettingError(f"{file}: there is no section {name!r}; known are {' and '.join(SECTIONS)}")
        return cls(
            xid.with_overrides(rules.get("xid") or {}, file),
            cuda_errors.with_overrides(rules.get("cuda") or {}, file),
        )
