"""Collections of other libraries, which are marked through Dask's collection protocol alone."""

from __future__ import annotations

import operator

import dask
import pytest
from dask.highlevelgraph import HighLevelGraph

from dask_resilient.errors import UnsupportedType
from dask_resilient.graph import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::dask_resilient.errors.ResilienceWarning")


class Pair:
    """A foreign collection over two arrays' keys, as the protocol allows: one graph, several names."""

    __dask_scheduler__ = staticmethod(dask.get)
    __dask_optimize__ = None

    def __init__(self, dsk, names):
        self.dsk, self.names = dsk, names

    def __dask_graph__(self):
        return self.dsk

    def __dask_layers__(self):
        return tuple(self.names)

    def __dask_keys__(self):
        return [(name, 0) for name in self.names]

    def __dask_postcompute__(self):
        return tuple, ()

    def __dask_postpersist__(self):
        return self._rebuild, ()

    def _rebuild(self, dsk, *, rename=None):
        return type(self)(dsk, [(rename or {}).get(name, name) for name in self.names])


class Stubborn(Pair):
    """A foreign collection whose rebuild cannot rename."""

    def _rebuild(self, dsk):
        return type(self)(dsk, self.names)


class Nameless(Pair):
    """A foreign collection whose keys do not begin with a name."""

    def __dask_keys__(self):
        return [(1, 0)]


def pair(kind):
    graph = HighLevelGraph({n: {(n, 0): (operator.neg, i)} for i, n in enumerate("ab")}, {"a": set(), "b": set()})
    return kind(graph, ["a", "b"])


def test_any_collection_with_the_protocol_can_be_marked():
    """A collection of several names is rebuilt through its own protocol, each name for itself."""
    marked = checkpoint(pair(Pair), "clean")
    assert type(marked) is Pair
    assert [name.startswith("checkpoint-clean-") for name in marked.names] == [True, True]
    assert dask.compute(marked, scheduler="sync")[0] == (0, -1)


@pytest.mark.parametrize(("kind", "why"), [(Stubborn, "takes no rename="), (Nameless, "do not begin with a name")])
def test_a_collection_that_cannot_be_rebuilt_is_refused(kind, why):
    """What the protocol cannot rename is an error at the call that says why."""
    with pytest.raises(UnsupportedType, match=why):
        checkpoint(pair(kind), "clean")
