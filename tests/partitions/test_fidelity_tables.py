"""T25 for tables: each awkward one saved, lost and reloaded exactly; or not saved with the reason, and recomputed."""

from __future__ import annotations

import re

import pytest
from awkward_tables import DECLINED, EXACT

from tests.support.cluster import Cluster, cluster_test
from tests.support.fates import exact_or_refused
from tests.versions.exchange import describe


def slug(name):
    """Give the name of a milestone, which becomes a file name."""
    return re.sub(r"\W+", "-", name)


SAVED = {slug(name): make for name, make in EXACT.items()}
NOT_SAVED = {slug(name): row for name, row in DECLINED.items()}


@pytest.mark.slow
@cluster_test(workers=2)
async def test_exact_or_refused(x: Cluster) -> None:
    """Each table survives the loss of every worker that held it, and tells what became of it."""
    await exact_or_refused(
        x,
        SAVED,
        NOT_SAVED,
        lambda said, expected: re.search(expected, said),
        lambda value, original: describe(value) == describe(original),
    )
