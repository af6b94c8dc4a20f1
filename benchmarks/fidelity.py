"""What comes back of awkward tables: from here, from pickle, from an Arrow IPC stream, from Parquet.

Run: ``python benchmarks/fidelity.py [--json FILE]``

The tables are those of the tests: values, labels, indexes and attributes that formats tend to lose something of. Each
is written and read in memory, and described before and after: bytes of every NumPy column, type and text of every other
value, dtypes, labels with their types, names, frequencies, attrs and flags. What differs in that, but not for
`pandas.testing.assert_frame_equal`, is called equal. Of ours each must be exact, or declined with the reason.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from table import arguments, show

ROOT = Path(__file__).parent.parent

Ending = tuple[str, str]
"""One of `ENDINGS`, and why."""

ENDINGS = ("exact", "equal", "different", "declined")


def main() -> None:
    args = arguments(__doc__ or "")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "partitions"), str(ROOT / "tests" / "versions")]
    warnings.simplefilter("ignore")
    import pandas as pd
    from awkward_tables import DECLINED, EXACT

    tables = {**EXACT, **{name: make for name, (make, _) in DECLINED.items()}}
    rows, reasons = [], {}
    for name, make in tables.items():
        value = make()
        endings = {way: ending(way, value) for way in WAYS if way == OURS or isinstance(value, pd.DataFrame)}
        rows.append(
            {"table": name, "kind": type(value).__name__} | {way: endings.get(way, ("-", ""))[0] for way in WAYS}
        )
        if endings[OURS][0] != "exact":
            reasons[name] = endings[OURS][1]
    show("every table", [row | {"why": reasons.get(str(row["table"]), "")} for row in rows], args.json)
    frames = [row for row in rows if row["pickle"] != "-"]
    counts = {way: Counter(row[way] for row in frames) for way in WAYS}
    show(
        f"{len(frames)} frames",
        [{"format": way} | {each: n[each] for each in ENDINGS} for way, n in counts.items()],
        None,
    )
    if any(row[OURS] not in ("exact", "declined") for row in rows):
        sys.exit("a table came back as another one")


def ending(way: str, value: Any) -> Ending:
    """Say how one table fares in one format."""
    import pandas as pd
    from exchange import describe

    try:
        again = WAYS[way](value)
    except Exception as e:
        return "declined", str(e)
    try:
        same = type(again) is type(value) and describe(again) == describe(value)
    except RecursionError:  # attrs that contain themselves
        same = str(again.attrs) == str(value.attrs)
    if same:
        return "exact", ""
    try:
        pd.testing.assert_frame_equal(again, value)
    except Exception as e:  # some labels cannot even be compared
        return "different", str(e)
    return "equal", ""


def ours(value: Any) -> Any:
    from dask_resilient import partitions
    from dask_resilient.core.outcome import Declined
    from dask_resilient.testing.codecs import round_trip

    result = partitions.stage(value)
    if isinstance(result, Declined):
        raise TypeError(result.reason)
    return round_trip(value)


def arrow(value: Any) -> Any:
    import pyarrow as pa

    table, sink = pa.Table.from_pandas(value), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all().to_pandas()


def parquet(value: Any) -> Any:
    import pandas as pd

    file = io.BytesIO()
    value.to_parquet(file)
    return pd.read_parquet(io.BytesIO(file.getvalue()))


OURS = "dask-resilient"
WAYS: dict[str, Callable[[Any], Any]] = {
    OURS: ours,
    "pickle": lambda value: pickle.loads(pickle.dumps(value, 5)),
    "Arrow IPC": arrow,
    "Parquet": parquet,
}

if __name__ == "__main__":
    main()
