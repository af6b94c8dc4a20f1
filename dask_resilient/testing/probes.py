"""The contract of a probe: a test class that every probe of a third party subclasses.

::

    class TestFans(ProbeContract):
        @pytest.fixture
        def probe(self):
            return Fans()
"""

from __future__ import annotations

import itertools
from typing import Any

from dask_resilient.core.faults import Class
from dask_resilient.core.readings import Name
from dask_resilient.probes.guest import MOST, PROBE, rows
from dask_resilient.probes.guests import pack

__all__ = ["ProbeContract"]

DEVICES = ("GPU-00000000-0000-0000-0000-000000000000", "host:somewhere/0")
"""A device that is not here, and a worker without one."""


class ProbeContract:
    """What every probe keeps to; subclasses give a fixture ``probe``, the object."""

    def _read(self, probe: Any, device: str) -> list[Any]:
        return list(itertools.islice(probe.read(device), MOST + 1))

    def test_can_be_sent_to_workers(self, probe: Any) -> None:
        """It has a name, an interval that is a number if any, and can be pickled."""
        ((name, pickled),) = pack([probe])
        assert name == probe.name
        assert pickled

    def test_gives_what_can_be_taken(self, probe: Any) -> None:
        """Tuples of a name, a plain value and perhaps a text; no name of a built-in reading; also of an odd device."""
        for device in DEVICES:
            for one in self._read(probe, device):
                ((name, value, text),) = rows(iter([one]))
                assert name != PROBE, text
                assert (value is None) == (one[1] is None), text

    def test_says_why_something_is_unknown(self, probe: Any) -> None:
        """A value of None comes with a reason."""
        for one in self._read(probe, DEVICES[0]):
            assert one[1] is not None or (len(one) > 2 and one[2]), one  # noqa: PLR2004 - the text is the third

    def test_states_classes_that_exist(self, probe: Any) -> None:
        """What it thinks right is a class of ours, with the reason."""
        for one in self._read(probe, DEVICES[0]):
            if str(one[0]).partition(".")[0] == Name.STATED:
                assert one[1] in set(Class), one
                assert len(one) > 2, one  # noqa: PLR2004
                assert one[2], one

    def test_ends(self, probe: Any) -> None:
        """One call gives a bounded number of readings."""
        assert len(self._read(probe, DEVICES[0])) <= MOST
