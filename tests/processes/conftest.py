"""The cluster of worker processes: one for all tests that leave it whole."""

from __future__ import annotations

import pytest

from tests.support.pool import Pool, one_test


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    pool = Pool(lambda: tmp_path_factory.mktemp("cluster"))
    yield pool
    pool.close()


@pytest.fixture
def x(pool, tmp_path, request):
    """Three workers of one thread, whole and empty; ``indirect`` parameters ask for another size and configuration."""
    options = dict(getattr(request, "param", {}))
    workers = options.pop("workers", 3)
    threads = options.pop("threads", 1)
    with one_test(pool.get(workers, threads, options), tmp_path) as x:
        yield x
