"""The contract of a probe: a test class that every probe of a third party subclasses.

::

    class TestFans(ProbeContract):
        @pytest.fixture
        def probe(self):
            return Fans()  # or the class
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import Any

from dask_resilient.core.faults import Class
from dask_resilient.core.readings import Name
from dask_resilient.probes.guest import MOST, PROBE, rows, wrong
from dask_resilient.probes.guests import pack

__all__ = ["ProbeContract"]

DEVICES = ("GPU-00000000-0000-0000-0000-000000000000", "host:somewhere/0")
"""A device that is not here, and a worker without one."""


class ProbeContract:
    """What every probe keeps to; subclasses give a fixture ``probe``, the object or the class."""

    seconds = 10.0
    """Longest that one call may take here; where a device answers slowly, a subclass sets more."""

    def _read(self, probe: Any, device: str) -> list[Any]:
        """Give what one call gives; a probe without end fails here, and hangs nothing."""
        reason = wrong(probe)
        assert not reason, f"the fixture `probe`: {reason}"
        made = probe() if isinstance(probe, type) else probe
        found: list[list[Any]] = []
        errors: list[BaseException] = []

        def read() -> None:
            try:
                given = made.read(device)
                assert isinstance(given, Iterable), f"read gave {given!r}: it has to yield tuples, or return a list"
                found.append(list(itertools.islice(given, MOST + 1)))
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(self.seconds)
        if errors:
            raise errors[0]
        assert found, f"read({device!r}) has not ended within {self.seconds:g} s"
        return found[0]

    def _pairs(self, probe: Any) -> list[Any]:
        """Give what is a reading; that all are is a test of its own."""
        return [one for one in self._read(probe, DEVICES[0]) if isinstance(one, tuple) and len(one) > 1]

    def test_can_be_sent_to_workers(self, probe: Any) -> None:
        """It has a name, an interval that is a number if any, and can be pickled."""
        reason = wrong(probe)
        assert not reason, f"the fixture `probe`: {reason}"
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
        for one in self._pairs(probe):
            assert one[1] is not None or (len(one) > 2 and one[2]), one  # noqa: PLR2004 - the text is the third

    def test_states_classes_that_exist(self, probe: Any) -> None:
        """What it thinks right is a class of ours, with the reason."""
        for one in self._pairs(probe):
            if str(one[0]).partition(".")[0] == Name.STATED:
                assert one[1] in set(Class), one
                assert len(one) > 2, one  # noqa: PLR2004
                assert one[2], one

    def test_ends(self, probe: Any) -> None:
        """One call gives a bounded number of readings."""
        many = len(self._read(probe, DEVICES[0])) > MOST
        assert not many, f"one call of read gave more than {MOST} readings: the others are not taken"
