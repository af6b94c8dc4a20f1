"""The contract of a codec, on values that Hypothesis draws: they come back, and damage ends as it must.

::

    class TestAnyThing(CodecProperties):
        def values(self):
            return st.builds(Thing, st.text())

        def assert_same(self, restored, original): ...
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from dask_resilient import partitions
from dask_resilient.errors import LoadError
from dask_resilient.testing.codecs import damaged_schemas, payload_of, staged
from dask_resilient.testing.same import assert_same

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, SearchStrategy

__all__ = ["CodecProperties"]


class CodecProperties:
    """What `protocols.Codec` promises, for any value of a strategy."""

    examples: int = 300
    """How many values each test draws; the same ones in every run."""

    def values(self) -> SearchStrategy[Any]:
        """Give the strategy."""
        raise NotImplementedError

    def assert_same(self, restored: Any, original: Any) -> None:
        """Fail unless two values are equal in everything that a task could see."""
        assert_same(restored, original)

    def use(self, restored: Any) -> None:
        """Use a value that came out of a damaged store, so that what should have been refused shows itself."""

    def check_round_trips(self, examples: int) -> None:
        """Fail with the smallest value that comes back different, or is declined."""
        import hypothesis
        from hypothesis import HealthCheck, given

        @hypothesis.settings(_settings(examples), suppress_health_check=list(HealthCheck))
        @given(self.values())
        def check(value: Any) -> None:
            result = staged(value)
            schema = json.loads(json.dumps(result.schema, allow_nan=False))
            self.assert_same(partitions.restore(result.codec, schema, payload_of(result)), value)

        check()

    def check_damage(self, examples: int) -> None:
        """Fail with the smallest damage that does something else than give a value or raise a `LoadError`."""
        import hypothesis
        from hypothesis import HealthCheck, given
        from hypothesis import strategies as st

        @hypothesis.settings(_settings(examples), suppress_health_check=list(HealthCheck))
        @given(self.values(), st.data())
        def check(value: Any, data: DataObject) -> None:
            result = staged(value)
            schema, payload = result.schema, payload_of(result)
            if data.draw(st.booleans()):
                schemas = damaged_schemas(schema)
                schema = schemas[data.draw(st.integers(0, len(schemas) - 1))]
            elif len(payload):
                at = data.draw(st.integers(0, len(payload) - 1))
                payload[at : at + data.draw(st.sampled_from([1, 8]))] = data.draw(st.integers(0, 255))
            try:
                restored = partitions.restore(result.codec, schema, payload)
            except LoadError:
                return
            with contextlib.suppress(Exception):  # of the library, which may well refuse: it must not break the process
                self.use(restored)

        check()

    def test_any_value_comes_back(self) -> None:
        """Whatever is drawn comes back exactly."""
        self.check_round_trips(self.examples)

    def test_any_damage_ends_as_it_must(self) -> None:
        """A changed schema or payload gives a value or a `LoadError`, and no value that breaks the process."""
        self.check_damage(self.examples)


def _settings(examples: int) -> Any:
    import hypothesis

    return hypothesis.settings(max_examples=examples, derandomize=True, deadline=None, database=None)
