"""A consumer that changes the value in place never gets its change into the store."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from distributed import wait

import dask_resilient as dr
from dask_resilient import partitions
from dask_resilient.store import open_store

TIMES = 100
AT_ONCE = 80


def make_array(i):
    """Make a value that takes several system calls to write."""
    return np.full(20_000, float(i))


def make_frame(i):
    """Make the same as a table."""
    return pd.DataFrame({"x": np.full(5_000, float(i)), "k": np.arange(5_000)})


def change_array(b):
    """Change the value in place, as careless code does; and use it."""
    b += 1
    return float(b[0])


def change_frame(df):
    """Change a column in place."""
    df["x"] += 1
    df.loc[:, "k"] = 0
    values = df["x"].to_numpy()
    return float(values[0])


@pytest.mark.parametrize("x", [{"workers": 2, "threads": 2}], indirect=True)
@pytest.mark.parametrize(
    ("make", "change"), [(make_array, change_array), (make_frame, change_frame)], ids=["numpy", "pandas"]
)
def test_a_change_in_place_never_gets_into_the_store(x, make, change):
    """100 partitions, each changed by the next task at once: what is durable, and what is reloaded, is unchanged."""
    x.install()
    made = [dr.checkpoint(delayed(make)(i), "clean") for i in range(TIMES)]
    keys = [m.key for m in made]
    # The last ones are changed when they are durable, all others at once, while they are staged or written.
    kept = x.client.compute(made[AT_ONCE:], optimize_graph=False)
    x.durable(TIMES - AT_ONCE)
    changed = x.client.compute([delayed(change)(m) for m in made], optimize_graph=False)
    wait(changed, 60)
    del kept

    def settled():
        rows = x.watch.ledger.entries
        return all(key in rows and str(rows[key].state) != "saving" for key in keys)

    x.until(settled, what="every partition is saved, or not")
    entries = x.ask(lambda: {key: (entry.place, entry.reason) for key, entry in x.watch.ledger.entries.items()})
    store = open_store(x.store, create=False)
    durable = set()
    for i, key in enumerate(keys):
        place, reason = entries[key]
        if place is None:
            assert reason == "changed while it was being written"
            continue
        durable.add(i)
        receipt, payload = store.read(place, None)
        equal(partitions.restore(receipt.codec, receipt.schema, payload), make(i))
    assert durable >= set(range(AT_ONCE, TIMES))

    assert x.client.gather(changed) == [i + 1 for i in range(TIMES)]
    x.kill(x.addresses()[0])
    assert x.client.gather(changed) == [i + 1 for i in range(TIMES)]
    assert x.loads()


def equal(got, expected):
    """Check that two values are the same to the last bit."""
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(got, expected, check_exact=True)
    else:
        np.testing.assert_array_equal(got, expected)
