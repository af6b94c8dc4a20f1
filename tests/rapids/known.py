"""Whose the names are that our code uses on values, and which libraries' they are not."""

from __future__ import annotations

TABLES = ("cudf.DataFrame", "cudf.Series")
INDEXES = ("cudf.Index", "cudf.DatetimeIndex", "cudf.TimedeltaIndex", "cudf.CategoricalIndex", "cudf.IntervalIndex")
COLUMN = "cudf.core.column.ColumnBase"
KINDS = ("numerical.NumericalColumn", "string.StringColumn", "categorical.CategoricalColumn", "lists.ListColumn")
KINDS += ("struct.StructColumn", "decimal.DecimalColumn", "interval.IntervalColumn", "datetime.DatetimeColumn")
KINDS += ("timedelta.TimeDeltaColumn",)
COLUMNS = (COLUMN, *(f"cudf.core.column.{kind}" for kind in KINDS))
DECIMALS = ("cudf.Decimal32Dtype", "cudf.Decimal64Dtype", "cudf.Decimal128Dtype")

VALUES: dict[str, tuple[str, ...]] = {
    "_columns": (*TABLES, *INDEXES, "cudf.MultiIndex"),
    "_levels": ("cudf.MultiIndex",),
    "access": COLUMNS,
    "attrs": TABLES,
    "categories": ("cudf.CategoricalDtype",),
    "children": ("pylibcudf.Column",),
    "closed": ("cudf.IntervalDtype",),
    "columns": ("cudf.DataFrame",),
    "data": ("pylibcudf.Column",),
    "dtype": ("cudf.Series", *INDEXES, *COLUMNS),
    "flags": TABLES,
    "freq": ("cudf.DatetimeIndex",),
    "index": TABLES,
    "name": ("cudf.Series", *INDEXES, "cudf.RangeIndex"),
    "names": ("cudf.MultiIndex",),
    "null_mask": ("pylibcudf.Column",),
    "ordered": ("cudf.CategoricalDtype",),
    "owner": ("cudf.core.buffer.buffer.Buffer", "cudf.core.buffer.spillable_buffer.SpillableBuffer"),
    "plc_column": (COLUMN,),
    "precision": DECIMALS,
    "scale": DECIMALS,
    "start": ("cudf.RangeIndex",),
    "step": ("cudf.RangeIndex",),
    "stop": ("cudf.RangeIndex",),
    "subtype": ("cudf.IntervalDtype",),
    "to_arrow": (*COLUMNS, *DECIMALS, "cudf.IntervalDtype"),
}
"""Attribute, and every type that it is asked of."""

NAMED: dict[str, tuple[str, ...]] = {
    "is_spilled": ("cudf.core.buffer.spillable_buffer.SpillableBufferOwner",),
    "allows_duplicate_labels": ("pandas.Flags",),
}
"""Names that our code writes as text, or that belong to a library beside cuDF."""

TYPES = ("DataFrame", "Series", "MultiIndex", "RangeIndex", *(name.removeprefix("cudf.") for name in INDEXES))
"""Types that the codec knows by the name of their class."""

DTYPES = ("ListDtype", "StructDtype", "CategoricalDtype", "IntervalDtype")
DTYPES += tuple(name.removeprefix("cudf.") for name in DECIMALS)

ELSEWHERE = {
    "contextlib": {"ExitStack", "contextmanager", "enter_context"},
    "numpy and Python": {"__name__", "get", "nbytes", "str", "tobytes"},
    "pyarrow": {"ExtensionArray", "chunks", "field", "from_storage", "is_dictionary", "is_null", "num_fields"}
    | {"storage", "type", "types", "value_type"},
    "ours": {"add", "allows_duplicate_labels", "buffers", "dumps", "finish", "from_json", "loads", "take", "to_json"},
}
"""Attributes of other libraries and of our own modules."""

POSITIONS = {"cupy.ndarray": ["shape", "dtype", "memptr", "strides"]}
"""Parameters that our code gives by position, of a type whose signature stands only in its docstring."""
