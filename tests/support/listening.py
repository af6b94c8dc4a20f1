"""A gauge with a listener, for tests of what its probe process says."""

from __future__ import annotations

import time

from dask_resilient.core.health import judge
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import Baseline
from dask_resilient.probes.device import Gauge
from tests.support import fakegpu
from tests.support.waiting import wait_until

GPU = fakegpu.uuid(0)


QUICK = {"silence": 1.5, "patience": 3.0, "first_delay": 0.05}


class Listening:
    """A gauge on GPU 0, and what it told.

    Parameters
    ----------
    seconds
        What is given to the gauge; else it is quick to lose patience.
    options
        Of the probe process.
    """

    def __init__(self, seconds=None, **options):
        self.gauge = Gauge(**{**QUICK, **(seconds or {})})
        self.readings = []
        self.gauge.configure(**{"interval": 0.2, "kernel_log": "/nowhere", **options})
        self.gauge.listen(self.readings.extend)
        self.gauge.start()

    def last(self, name):
        return next((r for r in reversed(self.readings) if r.name == name), None)

    def until(self, name, value):
        wait_until(lambda: (r := self.last(name)) is not None and r.value == value, what=f"{name} is {value!r}")
        return self.last(name)

    def verdict(self):
        return judge(self.readings, Baseline(GPU).advance(self.readings), Limits(), time.time())
