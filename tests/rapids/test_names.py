"""Every name of cuDF, pylibcudf and CuPy that our code calls exists there, with the parameters that it is called with.

Run in an environment with the real packages: they import without a driver. Nothing is run on a device.
"""

from __future__ import annotations

import importlib
import inspect
import re

import cudf
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from known import DTYPES, ELSEWHERE, NAMED, POSITIONS, TYPES, VALUES
from names import Use, every_use, uses

from dask_resilient.errors import Unreachable
from dask_resilient.partitions.cudf_columns import describe, same_dtype
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.table import codec_of

USES = every_use()
CHAINS = [use for use in USES if not use.name.startswith(".")]
OF_VALUES = [use for use in USES if use.name.startswith(".")]
OTHERS = set().union(*ELSEWHERE.values())


def find(path):
    """Give what a dotted path names, as it stands in its class; fail where it names nothing."""
    words = path.split(".")
    thing, parent = importlib.import_module(words[0]), None
    for i, word in enumerate(words[1:], 1):
        parent = thing
        if hasattr(thing, word):
            thing = inspect.getattr_static(thing, word) if inspect.isclass(thing) else getattr(thing, word)
        elif inspect.isclass(thing):
            known = {name for base in thing.__mro__ for name in getattr(base, "__annotations__", {})}
            assert word in known or re.search(rf"\bself\.{word}\b.* = ", source(thing)), f"{path} does not exist"
            return None, parent
        else:
            thing = importlib.import_module(".".join(words[: i + 1]))
    return thing, parent


def source(kind):
    return "\n".join(inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith("cudf"))


def signature(thing, path):
    """Give the signature, of compiled functions the one in their docstring."""
    try:
        if path not in POSITIONS:
            return inspect.signature(thing)
        raise ValueError
    except ValueError:
        line = thing.__doc__.strip().splitlines()[0].split("->")[0].strip()
        names = re.fullmatch(r"[\w.]+\((.*)\)", line)
        assert names, f"{path} does not say its parameters: {line!r}"
        made = {}
        exec(f"def made({names[1]}): ...", made)
        return inspect.signature(made["made"])


def check(path, use):
    """Fail unless the name exists, can be set if it is set, and takes the arguments that it is given."""
    thing, parent = find(path)
    if use.assigned and thing is not None:
        assert isinstance(thing, property), f"{path} is set at {use.where}, and is no property"
        assert thing.fset, f"{path} is set at {use.where}, and cannot be"
    if use.call is None:
        return
    count, keywords = use.call
    if path in POSITIONS:
        order = list(signature(thing, path).parameters)
        assert order[:count] == POSITIONS[path][:count], f"{path} takes {order}"
    if isinstance(thing, classmethod):
        bound = signature(thing.__func__, path)
    elif inspect.isclass(parent) and not inspect.isclass(thing) and not isinstance(thing, staticmethod):
        bound = signature(thing, path)
    else:
        bound, count = signature(thing, path), count - 1
    bound.bind(*[None] * (count + 1), **dict.fromkeys(keywords))


@pytest.mark.parametrize("use", CHAINS, ids=lambda use: f"{use.name} at {use.where}")
def test_name_of_a_library_exists(use):
    """What our code writes behind the name of a library is there, and is called as it wants to be."""
    check(use.name, use)


@pytest.mark.parametrize("use", OF_VALUES, ids=lambda use: f"{use.name} at {use.where}")
def test_attribute_of_a_value_exists(use):
    """An attribute that our code asks of a value is known, and every type that may be asked has it."""
    name = use.name.removeprefix(".")
    assert name in VALUES or name in OTHERS, f"{use.where} uses {name!r}: say in known.py whose it is"
    shaped = [path for path in VALUES.get(name, ()) if use.call is None or takes_calls(f"{path}.{name}")]
    assert shaped or name in OTHERS, f"{use.where} calls {name!r}, which no type has as a method"
    for path in VALUES.get(name, ()):
        check(f"{path}.{name}", use if path in shaped else Use(use.name, use.where))


def takes_calls(path):
    thing = find(path)[0]
    return thing is not None and (callable(thing) or isinstance(thing, classmethod))


def test_names_written_as_text_exist():
    """What our code asks for by `getattr`, or of pandas in the place of cuDF, is there."""
    for name, owners in NAMED.items():
        for owner in owners:
            find(f"{owner}.{name}")


def test_copy_of_an_array_keeps_its_order():
    """CuPy's `copy` takes the order that our code asks for."""
    check("cupy.ndarray.copy", Use("copy", "device.py", (0, ("order",))))


def test_types_are_registered_where_cudf_defines_them():
    """Each type is found by the module and name that cuDF gives it, and no dtype has another name than is asked for."""
    for name in TYPES:
        assert codec_of(getattr(cudf, name)) == "cudf"
    for name in DTYPES:
        assert getattr(cudf, name).__name__ == name


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: np.dtype("i4"), "numpy"),
        (lambda: np.dtype("M8[ms]"), "numpy"),
        (lambda: cudf.dtype("str"), "string"),
        (lambda: cudf.ListDtype("int8"), "nested"),
        (lambda: cudf.StructDtype({"a": "int8", "b": "str"}), "nested"),
        (lambda: cudf.Decimal32Dtype(5, 2), "decimal"),
        (lambda: cudf.Decimal64Dtype(5, 2), "decimal"),
        (lambda: cudf.Decimal128Dtype(5, 2), "decimal"),
        (lambda: cudf.IntervalDtype("int64", "left"), "interval"),
    ],
)
def test_real_dtypes_are_described(make, kind):
    """A dtype of the real cuDF has an exact description, and is recognised by it."""
    spec = describe(make())
    assert kind in spec
    same_dtype(make(), {"dtype": spec})


@pytest.mark.parametrize("make", [pd.Int64Dtype, lambda: np.dtype("f2"), lambda: pd.ArrowDtype(pa.int8())])
def test_other_dtypes_are_declined(make):
    """A dtype that is in no table is declined, and never taken for another one."""
    with pytest.raises(Inexact):
        describe(make())
    with pytest.raises(Unreachable, match="cuDF"):
        same_dtype(make(), {"dtype": describe(np.dtype("i8"))})


def test_intervals_have_the_arrow_type_that_restoring_makes():
    """The Arrow type of intervals is built by cuDF without a device, and cuDF reads it as what it was."""
    from cudf.utils.dtypes import cudf_dtype_from_pa_type

    kind = cudf.IntervalDtype(np.dtype("i8"), "left").to_arrow()
    assert describe(cudf_dtype_from_pa_type(kind)) == {"interval": "<i8", "closed": "left"}


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.string()), pa.struct([("a", pa.int8())]), pa.decimal64(5, 2), pa.decimal128(9, 2), pa.timestamp("us")],
    ids=str,
)
def test_arrow_types_come_back_as_the_same_dtype(kind):
    """What cuDF makes of an Arrow type, made Arrow and read again, is what was described."""
    from cudf.utils.dtypes import cudf_dtype_from_pa_type

    dtype = cudf_dtype_from_pa_type(kind)
    again = dtype.to_arrow() if hasattr(dtype, "to_arrow") else kind
    assert describe(cudf_dtype_from_pa_type(again)) == describe(dtype)


BREAKS = {
    "an unknown function": "import cudf\ncudf.no_such_thing(1)",
    "an unknown parameter": "import cudf\ncudf.Series.from_arrow(1, colour=2)",
    "too many arguments": "import cupy\ncupy.cuda.runtime.deviceSynchronize(1)",
    "a name imported alone": "from cudf import Series",
    "an unknown attribute": "value.colour",
    "a method called wrongly": "column.access('read')",
    "a property set that cannot be": "dtype.ordered = True",
}


@pytest.mark.parametrize("code", BREAKS.values(), ids=BREAKS)
def test_this_test_can_fail(code, tmp_path):
    """A wrong use of a name is found, whatever is wrong with it."""
    path = tmp_path / "cudf_wrong.py"
    path.write_text(code)
    *_, use = uses(path)
    test = test_attribute_of_a_value_exists if use.name.startswith(".") else test_name_of_a_library_exists
    with pytest.raises((AssertionError, TypeError, ModuleNotFoundError)):
        test(use)
