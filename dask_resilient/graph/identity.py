"""By what other runs know a milestone: its fingerprint, or the user's word."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dask_resilient import config
from dask_resilient.core.fingerprints import Fingerprint, combine, milestone_of
from dask_resilient.core.lineages import dump_lineage
from dask_resilient.core.milestones import TOGETHER
from dask_resilient.errors import ResilienceWarning
from dask_resilient.graph.fingerprint import fingerprint
from dask_resilient.graph.known import remember
from dask_resilient.graph.milestone import Mark

logger = logging.getLogger("dask_resilient")

SHOWN = 3
"""Reasons that a warning names."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known of a marked collection beyond its name."""

    fingerprint: str = ""
    """Its digest; empty if it has none that another run would find too, or nobody asked."""
    reasons: tuple[str, ...] = ()
    """Why it has none."""
    lineage: bytes | None = None
    """What `core.lineages.read_lineage` reads."""
    fixed: str = ""
    """m, where something else than the collection says what it is: a field of a loop."""
    full: Fingerprint | None = None
    """All of it, for what stands on it; it does not travel."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fingerprint, self.reasons, self.lineage, self.fixed)

    def facts(self, mark: Mark, shape: str) -> dict[str, Any]:
        """Give what goes into the nodes of a mark."""
        return {"ids": self.ids(mark, shape), "lineage": self.lineage, "quiet": bool(self.fixed)}

    def remember(self, mark: Mark, collection: str) -> None:
        """Keep in mind what the keys of this milestone stand for."""
        if self.full is not None and self.full.pinned:
            remember(collection, self.full)
        elif mark.version is not None:
            remember(collection, Fingerprint(combine(["version", mark.name, repr(mark.version)])))

    def ids(self, mark: Mark, shape: str) -> dict[str, str]:
        """Give m by the setting ``resilience.resume`` under which it counts; for this run only where there is none."""
        if self.fixed:
            return {"fingerprint": self.fixed, "name": self.fixed}
        named = milestone_of(mark.name, shape, version=mark.version)
        if mark.version is not None:
            return {"fingerprint": named, "name": named}
        if self.fingerprint:
            return {"fingerprint": milestone_of(mark.name, shape, fingerprint=self.fingerprint), "name": named}
        return {"name": named}


def identify(mark: Mark, collection: Any) -> Identity:
    """Give the identity of a collection that is marked, as far as the setting ``resilience.resume`` asks for it.

    Never raises: what cannot be told apart is for this run only.
    """
    if config.read().resume != "fingerprint":
        return Identity()
    try:
        found = fingerprint(collection)
        lineage = dump_lineage(found)
    except Exception as e:
        logger.warning("dask-resilient: no fingerprint of checkpoint %r", mark.name, exc_info=True)
        return Identity(reasons=(f"its fingerprint failed with {e!r:.200}",))
    if mark.version is None and not found.pinned:
        return Identity(reasons=tuple(found.reasons), lineage=lineage)
    return Identity(found.digest if found.pinned else "", lineage=lineage, full=found)


def together(identities: Iterable[Identity], otherwise: Callable[[], str]) -> str:
    """Give what parts of one object share: the same in every run that makes all of them the same."""
    found = [identity.fingerprint for identity in identities]
    return TOGETHER + combine(sorted(found)) if all(found) else otherwise()


def warn(mark: Mark, reasons: Iterable[str], stacklevel: int) -> None:
    """Warn once a mark, if no other run can go on from it."""
    reasons = list(dict.fromkeys(reasons))
    if not reasons:
        return
    more = f" (and {len(reasons) - SHOWN} more)" if len(reasons) > SHOWN else ""
    warnings.warn(
        f"checkpoint {mark.name!r} is for this run only, another run computes it again: "
        f"{'; '.join(reasons[:SHOWN])}{more}; or give checkpoint(..., version=...) and change that when it changes",
        ResilienceWarning,
        stacklevel=stacklevel,
    )
