"""How a device is decided about: the table says what follows from an event, the breaker whether that may be done."""

from __future__ import annotations

from dask_resilient.core.actions import OURS, Cause, Decision, Phase
from dask_resilient.core.alarms import Alarms
from dask_resilient.core.breaker import Breaker
from dask_resilient.core.devices import Device
from dask_resilient.core.phases import ONE, OUT, PROCESS, TABLE, Ask, Times


class Decider:
    """The devices of one cluster, and what may be done about them.

    Parameters
    ----------
    breaker
        Says when judgements wait.
    times
        How long things take.
    """

    def __init__(self, breaker: Breaker, times: Times) -> None:
        self.breaker = breaker
        self.times = times
        self.devices: dict[str, Device] = {}
        self._taken: list[tuple[float, str]] = []
        """When judgements took which device."""
        self._alarms = Alarms()
        """What was declined since a device's phase changed, and under no device which tasks are to blame."""

    def phase(self, device: str) -> Phase:
        """Give where a device stands."""
        known = self.devices.get(device)
        return known.phase if known is not None else Phase.ACTIVE

    def _get(self, name: str) -> Device:
        return self.devices.setdefault(name, Device(name))

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _try(self, device: Device, now: float) -> list[Decision]:
        """Run a canary if it is time for one: out of service, where a new process says that it may be used again."""
        if device.trying or now < device.due:
            return []
        if device.phase is Phase.PROBATION:
            worker, cause = device.able(now, self.times), device.cause or Cause("probation")
        else:
            worker = device.sign()
            cause = Cause("sign", device.verdicts[worker].cause.evidence if worker else ())
        return self._ask(device, Ask.SIGN, cause, worker, now) if worker else []

    def _ask(self, device: Device, ask: Ask, cause: Cause, worker: str, now: float) -> list[Decision]:
        """Look an event up in the table, and do what it says unless the breaker declines."""
        told: list[Decision] = []
        if ask in PROCESS and (more := device.one_too_many(cause, now, self.times)) and not self.breaker.observe:
            declined = self._refusal(device, more, now)
            if not declined:
                ask, cause = Ask.EVICT, more
            else:
                told = self._alarm(device, Ask.EVICT, more, worker, now, declined)
                ask = ask if device.phase is Phase.PROBATION else Ask.CHECK  # yet another process would be none better
        if (device.phase, ask) not in TABLE:
            return told
        if ask in OUT and cause.by == OURS:
            declined = self._refusal(device, cause, now)
            if declined:
                return told + self._alarm(device, ask, cause, worker, now, declined)
            if not cause.fact and ask is not Ask.CHECK:
                recent = (one for one in self._taken if now - one[0] < self.breaker.window and one[1] != device.name)
                self._taken = [*recent, (now, device.name)]
        before, (after, does) = device.phase, TABLE[device.phase, ask]
        if after is not before:
            self._alarms.forget(device.name)
            device.enter(after, cause, now, self.times)
        one = worker if ask in ONE else ""
        actions = tuple(action for do in does for action in device.act(do, worker, one, cause, now, self.times))
        return [*told, device.decide(before, cause, worker, now, actions)]

    def _refusal(self, device: Device, cause: Cause, now: float) -> str:
        if self.breaker.observe:
            return "resilience.quarantine.observe is true: nothing is enacted"
        if cause.fact:
            return ""
        known = {name for name, each in self.devices.items() if each.workers}
        return self.breaker.refuse(device.name, self.serving(), known, self._taken, now)

    def serving(self) -> set[str]:
        """Give the devices that get tasks and have a worker for them."""
        return {name for name, each in self.devices.items() if each.phase is Phase.ACTIVE and each.present}

    # -- telling -------------------------------------------------------------------------------------------------------

    def _alarm(self, device: Device, ask: Ask, cause: Cause, worker: str, now: float, declined: str) -> list[Decision]:
        if not self._alarms.is_news(device.name, ask, cause.rule, declined):
            return []
        after, does = TABLE.get((device.phase, ask), (device.phase, ()))
        would = f"{declined}; else it would be {after} ({', '.join(does)})"
        return [device.decide(device.phase, cause, worker, now, declined=would)]
