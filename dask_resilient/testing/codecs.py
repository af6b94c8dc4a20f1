"""The contract of a codec: a test class that every codec subclasses with values of its own.

::

    class TestMyCodec(CodecContract):
        codec = "my_library.Thing"

        @pytest.fixture(params=list(CASES))
        def value(self, request):
            return CASES[request.param]()

        def assert_same(self, restored, original): ...
"""

from __future__ import annotations

import json
import math
import random
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dask_resilient import partitions
from dask_resilient.errors import Foreign, LoadError
from dask_resilient.protocols import Payload, Staged

__all__ = ["CodecContract", "damaged_schemas", "payload_of", "round_trip", "staged"]

_INTRUDERS: tuple[Any, ...] = (None, -1, 2**62, True, 1.5, "this.s", "O", [], [2**62], {}, {"this": "s"})
"""What a damaged or hostile schema may hold anywhere; ``this`` is a module that nobody has imported."""

_MUTANTS = 80
"""Most changed schemas tried for one value."""


def staged(value: Any) -> Staged:
    """Stage a value, and fail with the reason if it is declined."""
    result = partitions.stage(value)
    assert isinstance(result, Staged), f"declined: {result.reason}"
    return result


def payload_of(result: Staged) -> Payload:
    """Give the bytes that a store would read back: all chunks, without padding."""
    raw = b"".join(buffer for chunk in result.chunks for buffer in chunk)
    return np.frombuffer(bytearray(raw[: result.nbytes]), np.uint8)


def round_trip(value: Any) -> Any:
    """Stage a value and restore it as from a store, its schema through JSON."""
    result = staged(value)
    return partitions.restore(result.codec, json.loads(json.dumps(result.schema)), payload_of(result))


def damaged_schemas(schema: Any) -> list[Any]:
    """Give some copies of a schema in which one part is what a damaged or hostile store may hold there."""
    return _some(_mutants(schema))


class CodecContract:
    """What `protocols.Codec` promises, for each value of the fixture ``value``."""

    codec: str
    """Name in the table."""

    def assert_same(self, restored: Any, original: Any) -> None:
        """Fail unless two values are equal in everything that a task could see."""
        raise NotImplementedError

    def test_comes_back_exactly(self, value: Any) -> None:
        """A value that is staged comes back the same."""
        assert staged(value).codec == self.codec
        self.assert_same(round_trip(value), value)

    def test_comes_back_from_read_only_bytes(self, value: Any) -> None:
        """A payload that is read-only and badly aligned gives the same value."""
        result = staged(value)
        shifted = np.frombuffer(b"x" + payload_of(result).tobytes(), np.uint8)[1:]
        self.assert_same(partitions.restore(result.codec, result.schema, shifted), value)

    def test_chunks_fit_the_grid(self, value: Any) -> None:
        """Chunks are full, as many as the grid has, of flat bytes, and carry their checksums."""
        result = staged(value)
        itemsize = 1 if result.data_type == "bool" else np.dtype(str(result.data_type)).itemsize
        grid = [-(-n // step) for n, step in zip(result.shape, result.chunk_shape, strict=True)]
        assert len(result.chunks) == math.prod(grid)
        assert math.prod(result.shape) * itemsize == result.nbytes
        assert {sum(map(len, chunk)) for chunk in result.chunks} <= {math.prod(result.chunk_shape) * itemsize}
        assert all(buffer.format == "B" and buffer.contiguous for chunk in result.chunks for buffer in chunk)
        assert result.crc32c == partitions.digest(result.chunks)

    def test_schema_is_strict_json(self, value: Any) -> None:
        """The schema holds JSON types only, without NaN."""
        schema = staged(value).schema
        assert json.loads(json.dumps(schema, allow_nan=False)) == schema

    def test_payload_of_another_size_is_foreign(self, value: Any) -> None:
        """A payload that is a byte short or long never gives a value."""
        result = staged(value)
        payload = payload_of(result)
        for other in (payload[:-1], np.append(payload, np.uint8(0))):
            if len(other) != len(payload):
                assert isinstance(_ending(result, result.schema, other), Foreign)

    def test_changed_schema_never_surprises(self, value: Any) -> None:
        """Whatever stands in a schema: it gives a value or a `LoadError`, brings in no library and takes no memory."""
        result = staged(value)
        payload = payload_of(result)
        round_trip(value)  # whatever a sound schema imports is imported
        libraries = _libraries()
        tracemalloc.start()
        try:
            for schema in damaged_schemas(result.schema):
                ending = _ending(result, schema, payload.copy())
                assert not isinstance(ending, Exception) or isinstance(ending, LoadError), (schema, ending)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert _libraries() == libraries
        assert peak < 16 * 2**20 + 32 * len(payload)

    def test_schema_without_a_part_is_foreign(self, value: Any) -> None:
        """A schema that lacks any of its keys does not describe a value."""
        result = staged(value)
        for key in result.schema:
            rest = {name: part for name, part in result.schema.items() if name != key}
            assert isinstance(_ending(result, rest, payload_of(result)), Foreign), key


def _ending(result: Staged, schema: Any, payload: Payload) -> Any:
    try:
        return partitions.restore(result.codec, schema, payload)
    except Exception as e:
        return e


def _libraries() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def _some(mutants: Iterator[Any]) -> list[Any]:
    every = list(mutants)
    return random.Random(0).sample(every, min(_MUTANTS, len(every)))  # noqa: S311  (the same choice in every run)


def _mutants(node: Any) -> Iterator[Any]:
    """Give copies of a JSON value with one part replaced, at every depth."""
    yield from _INTRUDERS
    if isinstance(node, Mapping):
        for key, part in node.items():
            yield from ({**node, key: mutant} for mutant in _mutants(part))
    elif isinstance(node, list):
        for i, part in enumerate(node):
            yield from ([*node[:i], mutant, *node[i + 1 :]] for mutant in _mutants(part))
