"""The fingerprint of a collection: its graph by what its tasks do, never by its keys.

Dask's keys cannot identify a partition in another process: those of `dd.read_parquet` are new in each, and those of a
function of an imported module stay the same when it is edited. So a task counts by its function, its arguments, and the
fingerprints of the tasks that it depends on; a dataframe by its expression, which is made of the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, DataNode, GraphNode, Task, TaskRef

from dask_resilient.core.fingerprints import Fingerprint, combine
from dask_resilient.graph.code import qualified
from dask_resilient.graph.content import OPTIONS, Digester
from dask_resilient.graph.kinds import is_xarray
from dask_resilient.graph.luck import in_expression
from dask_resilient.graph.milestone import keys_of
from dask_resilient.internals.nodes import Dict, NestedContainer, Set, convert_legacy_graph
from dask_resilient.tasks import SaveTask

IMPURE = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
"""A key that Dask drew at random, for a call of which nobody has said that it is pure."""

_NO_PART = ("_dataset_info_cache", "_pd_length_stats")
"""Operands of expressions that hold what was found out meanwhile, of files or of the data that is another operand."""


def fingerprint(collection: Any) -> Fingerprint:
    """Give the fingerprint of a collection.

    Parameters
    ----------
    collection
        Anything with Dask's collection protocol. Nothing of it is computed, and no file is read but for its size, its
        time and its inode.
    """
    digester = Digester(digest_collection)
    structure = digest_collection(collection, digester)
    return Fingerprint(structure, digester.facts(), tuple(digester.reasons))


def digest_collection(collection: Any, digester: Digester) -> str:
    """Give the digest of a collection, also where it is met as a value; facts and reasons go to the digester.

    Parameters
    ----------
    collection
        As `fingerprint`; an expression of a dataframe is one too.
    digester
        Digests what the tasks hold.
    """
    if _is_expression(collection):
        return _Expressions(digester).digest(collection)
    if is_xarray(collection):
        return _labelled(collection, digester)
    expr = None if isinstance(collection, Delayed) else getattr(collection, "expr", None)
    return _Expressions(digester).digest(expr) if expr is not None else _graph(collection, digester)


def _is_expression(value: Any) -> bool:
    # Of the class: collections pass what they do not know on to their expression.
    return hasattr(type(value), "_parameters") and hasattr(value, "operands")


def _labelled(x: Any, digester: Digester) -> str:
    """Give the digest of an xarray object: its graph is not all of it, what is in memory counts too."""
    own = {"": getattr(x, "variable", x), **getattr(x, "coords", {})}
    variables = x.variables if hasattr(x, "data_vars") else own
    parts = [(name, each.dims, each.data, each.attrs) for name, each in variables.items()]
    return combine(["labelled", type(x).__name__, digester.digest(parts), digester.digest(x.attrs)])


def _graph(collection: Any, digester: Digester) -> str:
    tasks = _Tasks(convert_legacy_graph(_spelled_out(collection.__dask_graph__())), digester)
    return combine(["graph", *map(tasks.digest, keys_of(collection))])


def _spelled_out(graph: Any) -> dict[Any, Any]:
    """Give the tasks of a graph; copies of its layers are spelled out, which would keep the tasks otherwise."""
    if not isinstance(graph, HighLevelGraph):
        return dict(graph)
    tasks: dict[Any, Any] = {}
    for layer in graph.layers.values():
        tasks.update(copy(layer))
    return tasks


class _Tasks:
    """The tasks of one graph."""

    def __init__(self, graph: Mapping[Any, GraphNode], digester: Digester) -> None:
        self._graph = graph
        self._digester = digester
        self._known: dict[Any, str] = {}

    def digest(self, key: Any) -> str:
        """Give the digest of a task, after those that it depends on: without recursion, since chains are long."""
        stack = [key]
        while stack:
            top = stack[-1]
            if top in self._known:
                stack.pop()
                continue
            node = self._graph.get(top)
            missing = [] if node is None else [key for key in node.dependencies if key not in self._known]
            if missing:
                stack += missing
                continue
            self._known[top] = self._node(top, node)
            stack.pop()
        return self._known[key]

    def _node(self, key: Any, node: GraphNode | None) -> str:
        if node is None:
            return self._digester.future(key)
        name = key[0] if isinstance(key, tuple) else key
        if isinstance(name, str) and IMPURE.search(name):
            self._digester.opaque(
                f"a delayed call {name.rpartition('-')[0][:40]!r} that may differ each time: pure=True"
            )
        return self._value(node)

    def _value(self, value: Any) -> str:  # noqa: C901, PLR0911 - one arm a kind of node
        match value:
            case TaskRef():
                return self._reference(value.key)
            case Alias():
                return self._reference(value.target)
            case SaveTask():
                return self._reference(next(iter(value.dependencies)))  # a milestone on the way: the same value
            case DataNode():
                return self._digester.digest(value.value)
            case Dict():
                return self._mapping(value)
            case NestedContainer():
                items = map(self._value, value.args)
                return combine([type(value).__name__, *(sorted(items) if isinstance(value, Set) else items)])
            case Task():
                return self._call(value)
            case list() | tuple() if type(value) in (list, tuple):
                return combine([type(value).__name__, *map(self._value, value)])
            case dict() if type(value) is dict:
                return self._mapping(value)
            case _:
                return self._digester.digest(value)

    def _reference(self, key: Any) -> str:
        return self._known.get(key) or self._digester.opaque(f"task {key!r} is not in its graph")

    def _mapping(self, values: Mapping[Any, Any]) -> str:
        options = self._digester.options
        pairs = ((self._value(k), options(v) if k == OPTIONS else self._value(v)) for k, v in values.items())
        return combine(["dict", *(each for pair in pairs for each in pair)])

    def _call(self, task: Task) -> str:
        if task.has_subgraph():
            return self._fused(*task.args)
        args = {str(i): arg for i, arg in enumerate(task.args)} | dict(sorted(task.kwargs.items()))
        function = qualified(task.func.func if isinstance(task.func, partial) else task.func)
        parts = (each for name, arg in args.items() for each in (name, self._argument(function, name, arg)))
        return combine(["task", self._digester.digest(task.func), *parts])

    def _argument(self, function: str, name: str, arg: Any) -> str:
        value = arg.value if isinstance(arg, DataNode) else arg
        if isinstance(value, GraphNode | TaskRef):
            return self._value(arg)
        return self._digester.argument(function, name, value, lambda: self._value(arg))

    def _fused(self, graph: Mapping[Any, GraphNode], key: Any, inputs: Iterable[Any], *args: Any) -> str:
        """Give the digest of tasks that were fused into one, as if they were not."""
        tasks = _Tasks(graph, self._digester)
        tasks._known.update(zip(inputs, map(self._value, args), strict=True))
        return tasks.digest(key)


class _Expressions:
    """The expressions of one dataframe."""

    def __init__(self, digester: Digester) -> None:
        self._digester = digester
        self._known: dict[str, str] = {}

    def digest(self, expr: Any) -> str:
        """Give the digest of an expression."""
        found = self._known.get(expr._name)
        if found is None:
            count = len(expr.operands) - len(expr._parameters)
            names = [*expr._parameters, *(f"#{i + 1}" for i in range(count))]  # what the function of a map gets as well
            parts = [
                f"{name}={self._argument(expr, name, operand)}"
                for name, operand in zip(names, expr.operands, strict=False)
                if name not in _NO_PART
            ]
            self._digester.digest(type(expr))
            if reason := in_expression(expr):
                self._digester.opaque(reason)
            found = self._known[expr._name] = combine(["expression", qualified(type(expr)), *parts])
        return found

    def _argument(self, expr: Any, name: str, operand: Any) -> str:
        if name == OPTIONS:
            return self._digester.options(operand)
        if _is_expression(operand):
            return self.digest(operand)
        function = expr.operand("func") if "func" in expr._parameters else None
        if name == "kwargs" and function is not None and type(operand) is dict:
            for key, value in operand.items():
                self._digester.argument(qualified(function), str(key), value, partial(self._operand, value))
        of = qualified(function if name.startswith("#") and function is not None else type(expr))
        return self._digester.argument(of, name.lstrip("#"), operand, lambda: self._operand(operand))

    def _operand(self, operand: Any) -> str:
        if _is_expression(operand):
            return self.digest(operand)
        if isinstance(operand, GraphNode):
            return _Tasks({operand.key: operand}, self._digester).digest(operand.key)
        if type(operand).__name__ == "_BackendData":
            return self._digester.digest(operand._data)
        if isinstance(operand, list | tuple):
            return combine([type(operand).__name__, *map(self._operand, operand)])
        if isinstance(operand, Iterable) and hasattr(operand, "__dask_graph__"):
            return _graph(operand, self._digester)
        return self._digester.digest(operand)
