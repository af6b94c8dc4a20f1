"""A double of cuDF on the CPU: the names that the codec calls, over pandas indexes and Arrow arrays.

It says nothing about cuDF itself: that the real names exist is checked in `tests/rapids`. Like cuDF it forgets the type
of a nested column without a value, and counts how often a spilled buffer would be moved back to the device.
"""

from __future__ import annotations

import types

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.tseries.frequencies import to_offset

__version__ = "26.10.02"

UNSPILLED = []
"""Buffers that were moved back to the device."""


class Owner:
    def __init__(self):
        self.is_spilled = False
        self.held = 0


class Buffer:
    def __init__(self):
        self.owner = Owner()


class Access:
    """Holds the buffers of a column."""

    def __init__(self, column):
        self.column = column

    def __enter__(self):
        for buffer in self.column.plc_column.buffers:
            buffer.owner.held += 1

    def __exit__(self, *_):
        for buffer in self.column.plc_column.buffers:
            buffer.owner.held -= 1


class PlcColumn:
    def __init__(self, children=()):
        self.buffers = [Buffer(), Buffer()]
        self.child_columns = [PlcColumn() for _ in children]

    def data(self):
        return self.buffers[0]

    def null_mask(self):
        return self.buffers[1]

    def children(self):
        return self.child_columns


class Column:
    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype
        self.plc_column = PlcColumn(range(array.type.num_fields))

    def access(self, *, mode, scope):
        assert (mode, scope) == ("read", "internal")
        return Access(self)

    def to_arrow(self):
        for buffer in self.plc_column.buffers:
            assert buffer.owner.held, "a buffer that nobody holds may be spilled"
            if buffer.owner.is_spilled:
                UNSPILLED.append(buffer)
        assert runtime.synchronized
        if isinstance(self.dtype, ListDtype | StructDtype) and self.array.null_count == len(self.array):
            return pa.nulls(len(self.array))
        if isinstance(self.dtype, IntervalDtype):
            return pa.ExtensionArray.from_storage(self.dtype.to_arrow(), self.array)
        return self.array


class Dtype:
    def __init__(self, **facts):
        self.__dict__.update(facts)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(map(str, self.__dict__.values()))})"


class ListDtype(Dtype):
    pass


class StructDtype(Dtype):
    pass


class Decimal64Dtype(Dtype):
    def to_arrow(self):
        return pa.decimal64(self.precision, self.scale)


class CategoricalDtype(Dtype):
    pass


class IntervalDtype(Dtype):
    def __init__(self, subtype, closed):
        super().__init__(subtype=subtype, closed=closed)

    def to_arrow(self):
        return pa.array(pd.arrays.IntervalArray.from_tuples([], self.closed, dtype=f"interval[{self.subtype}]")).type


def dtype(text):
    assert text == "str"
    return pd.StringDtype(na_value=np.nan)


def dtype_of(array):
    """Say what cuDF makes of an Arrow array."""
    kind = array.type
    if pa.types.is_list(kind):
        return ListDtype(element=kind.value_type)
    if pa.types.is_struct(kind):
        return StructDtype(fields=str(kind))
    if pa.types.is_decimal(kind):
        return Decimal64Dtype(precision=kind.precision, scale=kind.scale)
    if pa.types.is_dictionary(kind):
        categories = Index.from_arrow(array.dictionary)
        return CategoricalDtype(categories=categories, ordered=kind.ordered)
    if isinstance(kind, pa.BaseExtensionType):
        return IntervalDtype(np.dtype(kind.subtype.to_pandas_dtype()), kind.closed)
    return dtype("str") if pa.types.is_string(kind) else np.dtype(kind.to_pandas_dtype())


def column(array):
    """Make a column; from here on its Arrow array plays the device memory."""
    assert isinstance(array, pa.Array)
    kind = dtype_of(array)
    return Column(array.storage if isinstance(kind, IntervalDtype) else array, kind)


class Single:
    """What Series and Index have in common."""

    def __init__(self, only, name=None):
        self._columns, self.name = (only,), name

    @property
    def dtype(self):
        return self._columns[0].dtype

    def __len__(self):
        return len(self._columns[0].array)


class Index(Single):
    @classmethod
    def from_arrow(cls, obj):
        only = column(obj)
        if isinstance(only.dtype, CategoricalDtype | IntervalDtype):
            kind = CategoricalIndex if isinstance(only.dtype, CategoricalDtype) else IntervalIndex
        else:
            kind = {"M": DatetimeIndex, "m": TimedeltaIndex}.get(only.dtype.kind, Index)
        return kind(only)


class DatetimeIndex(Index):
    _freq = None

    @property
    def freq(self):
        return self._freq

    @freq.setter
    def freq(self, value):
        self._freq = to_offset(value)


class TimedeltaIndex(Index):
    @property
    def freq(self):
        raise NotImplementedError("freq is currently not implemented")


class CategoricalIndex(Index):
    pass


class IntervalIndex(Index):
    pass


class RangeIndex(Index):
    def __init__(self, start, stop, step, name=None):
        self.start, self.stop, self.step, self.name = start, stop, step, name

    @property
    def _columns(self):
        raise AssertionError("this would make a column on the device")

    def __len__(self):
        return len(range(self.start, self.stop, self.step))


class MultiIndex(Index):
    _levels = None

    def __init__(self, columns, names):
        self._columns, self.names = tuple(columns), list(names)

    @classmethod
    def from_frame(cls, df, *, names):
        return cls(df._columns, names)


class Table:
    """What DataFrame and Series have in common."""

    def start(self, rows):
        self.index, self.attrs = RangeIndex(0, rows, 1), {}
        self.flags = types.SimpleNamespace(allows_duplicate_labels=True)


class Series(Single, Table):
    def __init__(self, only):
        super().__init__(only)
        self.start(len(only.array))

    @classmethod
    def from_arrow(cls, array):
        return cls(column(array))


class DataFrame(Table):
    def __init__(self, data=None, *, index=None):
        series = list((data or {}).values())
        self._columns = tuple(each._columns[0] for each in series)
        self.start(len(series[0]) if series else len(index or ()))
        self.index = self.index if index is None else index
        self.columns = pd.RangeIndex(len(series))


runtime = types.SimpleNamespace(synchronized=0)


def synchronize():
    runtime.synchronized += 1


cupy = types.SimpleNamespace(
    cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(deviceSynchronize=synchronize)),
)
"""Stands for CuPy beside it."""

for kind, module in {DataFrame: "dataframe", Series: "series", MultiIndex: "multiindex"}.items():
    kind.__module__ = f"cudf.core.{module}"
for kind in (Index, DatetimeIndex, TimedeltaIndex, CategoricalIndex, IntervalIndex, RangeIndex):
    kind.__module__ = "cudf.core.index"
