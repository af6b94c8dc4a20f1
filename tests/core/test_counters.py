"""Counters and states of a device: each rule just within and just beyond its edge, and the baseline."""

from __future__ import annotations

import pytest

from dask_resilient.core import counters
from dask_resilient.core.faults import Class
from dask_resilient.core.health import Health, health
from dask_resilient.core.history import History
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import COUNTERS, Baseline, Name, Reading
from dask_resilient.core.rules import RULES
from tests.support.readings import GPU, NOW, OTHER, TCP, UCX, WELL, Value, check, reading, verdict

# -- counters and states ---------------------------------------------------------------------------------------------

NAME_ONLY: dict[str, tuple[str, Value, dict[str, float], Limits, Class]] = {
    "ECC as before": (Name.ECC_UNCORRECTED, 5, {Name.ECC_UNCORRECTED: 5}, TCP, Class.OBSERVE),
    "ECC risen": (Name.ECC_UNCORRECTED, 6, {Name.ECC_UNCORRECTED: 5}, TCP, Class.DRAIN),
    "ECC reset": (Name.ECC_UNCORRECTED, 3, {Name.ECC_UNCORRECTED: 5}, TCP, Class.OBSERVE),
    "ECC without a baseline": (Name.ECC_UNCORRECTED, 3, {}, TCP, Class.OBSERVE),
    "SRAM in bounds": (Name.SRAM_THRESHOLD, False, {}, TCP, Class.OBSERVE),
    "SRAM exceeded": (Name.SRAM_THRESHOLD, True, {}, TCP, Class.DRAIN),
    "remap worked": (Name.REMAP_FAILED, 0, {}, TCP, Class.OBSERVE),
    "remap failed": (Name.REMAP_FAILED, 1, {}, TCP, Class.DRAIN),
    "rows 512": (Name.REMAPPED_ROWS, 512, {}, TCP, Class.OBSERVE),
    "rows 513": (Name.REMAPPED_ROWS, 513, {}, TCP, Class.DEGRADE),
    "banks good": (Name.REMAP_EXHAUSTED, 0, {}, TCP, Class.OBSERVE),
    "banks used up": (Name.REMAP_EXHAUSTED, 1, {}, TCP, Class.DEGRADE),
    "pages 62": (Name.RETIRED_PAGES, 62, {}, TCP, Class.OBSERVE),
    "pages 63": (Name.RETIRED_PAGES, 63, {}, TCP, Class.DRAIN),
    "DRAM corrected": (Name.ECC_CORRECTED_DRAM, 20_000_007, {Name.ECC_CORRECTED_DRAM: 7}, TCP, Class.OBSERVE),
    "DRAM storm": (Name.ECC_CORRECTED_DRAM, 20_000_008, {Name.ECC_CORRECTED_DRAM: 7}, TCP, Class.DEGRADE),
    "SRAM corrected": (Name.ECC_CORRECTED_SRAM, 10_001, {Name.ECC_CORRECTED_SRAM: 1}, TCP, Class.OBSERVE),
    "SRAM storm": (Name.ECC_CORRECTED_SRAM, 10_002, {Name.ECC_CORRECTED_SRAM: 1}, TCP, Class.DEGRADE),
    "link up": ("nvlink-state.3", True, {"nvlink-state.3": 1}, UCX, Class.OBSERVE),
    "link down": ("nvlink-state.3", False, {"nvlink-state.3": 1}, UCX, Class.DRAIN),
    "link down, tcp": ("nvlink-state.3", False, {"nvlink-state.3": 1}, TCP, Class.DEGRADE),
    "link never up": ("nvlink-state.3", False, {"nvlink-state.4": 1}, UCX, Class.OBSERVE),
    "BER good": ("nvlink-ber.0", 1e-12, {}, UCX, Class.OBSERVE),
    "BER bad": ("nvlink-ber.0", 1.1e-12, {}, UCX, Class.DEGRADE),
    "fabric well": (Name.FABRIC, 1, {}, UCX, Class.OBSERVE),
    "fabric not supported": (Name.FABRIC, 0, {}, UCX, Class.OBSERVE),
    "fabric unhealthy": (Name.FABRIC, 2, {}, UCX, Class.DRAIN),
    "fabric unhealthy, tcp": (Name.FABRIC, 2, {}, TCP, Class.DEGRADE),
    "fabric limited": (Name.FABRIC, 3, {}, UCX, Class.DEGRADE),
    "InfoROM well": (Name.INFOROM, True, {}, TCP, Class.OBSERVE),
    "InfoROM corrupt": (Name.INFOROM, False, {}, TCP, Class.DEGRADE),
    "as fast as others": (Name.SLOW_DOWN, 1.99, {}, TCP, Class.OBSERVE),
    "twice as slow": (Name.SLOW_DOWN, 2.0, {}, TCP, Class.DEGRADE),
    "a hang": (Name.HANG, 20.0, {}, TCP, Class.DEGRADE),
    "busy": (Name.NOT_ANSWERING, 30.0, {}, TCP, Class.OBSERVE),
    "remap pending": (Name.REMAP_PENDING, True, {}, TCP, Class.OBSERVE),
}


@pytest.mark.parametrize(("name", "value", "before", "limits", "cls"), NAME_ONLY.values(), ids=NAME_ONLY)
def test_each_counter_and_state_has_its_edge(
    name: str, value: Value, before: dict[str, float], limits: Limits, cls: Class
) -> None:
    """Just in bounds, just out of them; counters by what they rose, and after a reset from there."""
    found = verdict(WELL, reading(name, value), before=before, limits=limits)
    assert found.cls is cls, found
    assert found.health is health(cls)
    if cls is not Class.OBSERVE:
        check(found, cls, found.rule)
        assert found.source
    noted = {Name.NOT_ANSWERING: "work.not-answering", Name.REMAP_PENDING: "remap-pending"}
    assert (found.rule == noted.get(Name(found_kind(name)), "")) is (cls is Class.OBSERVE)


def found_kind(name: str) -> str:
    return name.partition(".")[0]


def test_uncorrectable_errors_beside_a_dead_context_cannot_be_read() -> None:
    """Alone they can."""
    risen = reading(Name.ECC_UNCORRECTED, 1)
    dead = reading("cuda-error.700", "kill", 9)
    check(verdict(risen, dead, before={Name.ECC_UNCORRECTED: 0}), Class.EVICT, "ecc-uncorrected")
    noted = reading("cuda-error.2", "observe", 9)
    check(verdict(risen, noted, before={Name.ECC_UNCORRECTED: 0}), Class.DRAIN, "ecc-uncorrected")


def test_a_row_that_was_remapped_just_now_degrades() -> None:
    """A pending one from before does not: later work is not affected."""
    pending = reading(Name.REMAP_PENDING, value=True)
    check(verdict(pending, reading(Name.XID, 63, 9)), Class.DEGRADE, "remap-pending")
    check(verdict(pending, reading(Name.XID, 63, 601)), Class.OBSERVE, "remap-pending")


@pytest.mark.parametrize(
    ("values", "cls"),
    [
        ({Name.TEMPERATURE: 89, Name.TEMPERATURE_SHUTDOWN: 92}, Class.OBSERVE),
        ({Name.TEMPERATURE: 90, Name.TEMPERATURE_SHUTDOWN: 92}, Class.DRAIN),
        ({Name.TEMPERATURE: 95, Name.TEMPERATURE_SHUTDOWN: 92}, Class.DRAIN),
        ({Name.TEMPERATURE: 90, Name.TEMPERATURE_SHUTDOWN: 0}, Class.OBSERVE),
        ({Name.TEMPERATURE: 90}, Class.OBSERVE),
        ({Name.TEMPERATURE: 85, Name.TEMPERATURE_MAX: 85}, Class.OBSERVE),
        ({Name.TEMPERATURE: 86, Name.TEMPERATURE_MAX: 85}, Class.DEGRADE),
        ({Name.TEMPERATURE: 86, Name.TEMPERATURE_MAX: 0}, Class.OBSERVE),
        ({Name.MARGIN: -4, Name.MARGIN_SHUTDOWN: -7}, Class.OBSERVE),
        ({Name.MARGIN: -5, Name.MARGIN_SHUTDOWN: -7}, Class.DRAIN),
        ({Name.MARGIN: -5}, Class.OBSERVE),
        ({Name.MARGIN: 1, Name.MARGIN_SHUTDOWN: 0}, Class.OBSERVE),
        ({Name.MARGIN: -1, Name.MARGIN_MAX: 0}, Class.DEGRADE),
        ({Name.MARGIN: 2, Name.MARGIN_MAX: 2}, Class.OBSERVE),
        ({Name.MARGIN: 1, Name.MARGIN_MAX: 2}, Class.DEGRADE),
        ({Name.TEMPERATURE: 50, Name.TEMPERATURE_SHUTDOWN: 92, Name.MARGIN: -6, Name.MARGIN_SHUTDOWN: -7}, Class.DRAIN),
    ],
)
def test_heat_counts_within_two_degrees_of_shutdown(values: dict[Name, float], cls: Class) -> None:
    """In either of NVIDIA's two ways of saying it; a threshold of 0 is none."""
    found = verdict(WELL, *(reading(name, value) for name, value in values.items()))
    assert (found.cls, found.rule) == (cls, "temperature" if cls is not Class.OBSERVE else "")


@pytest.mark.parametrize(("hot", "most", "cls"), [(95, 95, "observe"), (96, 95, "degrade"), (96, 0, "observe")])
def test_hot_memory_degrades(hot: float, most: float, cls: str) -> None:
    """Above the highest temperature that the driver names."""
    found = verdict(WELL, reading(Name.MEMORY_TEMPERATURE, hot), reading(Name.MEMORY_TEMPERATURE_MAX, most))
    assert found.cls == cls


def slowed(minutes: int, bits: int, device: str = GPU) -> list[Reading]:
    """Give a reading a minute, at its beginning, for ten minutes, the last ones slowed down."""
    return [
        Reading("nvml", device, Name.CLOCKS_REASONS, bits if m < minutes else 0x4, NOW - 60 * m - 59) for m in range(10)
    ]


@pytest.mark.parametrize("bits", [0x8, 0x40, 0x80, 0xC8])
@pytest.mark.parametrize(("minutes", "cls"), [(5, Class.OBSERVE), (6, Class.DRAIN), (10, Class.DRAIN)])
def test_slow_down_by_hardware_counts_from_six_of_ten_minutes(minutes: int, cls: Class, bits: int) -> None:
    """Each of the three reasons."""
    found = verdict(WELL, *slowed(minutes, bits))
    assert (found.cls, found.rule) == (cls, "slow-down" if cls is Class.DRAIN else "")


@pytest.mark.parametrize(("others", "cls"), [(5, Class.DRAIN), (6, Class.DEGRADE)])
def test_slow_down_of_several_devices_is_the_host(others: int, cls: Class) -> None:
    """Its cooling or its power: leaving one device would not help."""
    check(verdict(WELL, *slowed(6, 0x8), *slowed(others, 0x40, OTHER)), cls, "slow-down")


def test_slow_down_is_counted_by_minutes_not_by_readings() -> None:
    """Many readings in one minute are one minute; a moment in a minute is none; older ones do not count."""
    burst = [reading(Name.CLOCKS_REASONS, 0x8, age) for age in range(1, 59)]
    assert verdict(WELL, *burst).health is Health.HEALTHY
    moments = [r for m in range(10) for r in [reading(Name.CLOCKS_REASONS, 0x8, 60 * m + 1)]]
    calm = [reading(Name.CLOCKS_REASONS, 0x0, 60 * m + s) for m in range(10) for s in (20, 40)]
    assert verdict(WELL, *moments).health is Health.UNHEALTHY
    assert verdict(WELL, *moments, *calm).health is Health.HEALTHY
    old = [reading(Name.CLOCKS_REASONS, 0x8, 600 + 60 * m) for m in range(10)]
    assert verdict(WELL, *old).health is Health.HEALTHY


@pytest.mark.parametrize(("bits", "cls"), [(0x20, Class.DEGRADE), (0x4, Class.OBSERVE), (0x1, Class.OBSERVE)])
def test_slow_down_by_software_degrades_at_most(bits: int, cls: Class) -> None:
    """A power cap and idleness are no trouble at all."""
    assert verdict(WELL, *slowed(10, bits)).cls is cls


@pytest.mark.parametrize(
    ("kind", "first", "last", "apart", "ucx"),
    [
        (Name.NVLINK_REPLAY, 4, 4, 60, Class.OBSERVE),
        (Name.NVLINK_REPLAY, 4, 5, 60, Class.DRAIN),
        (Name.NVLINK_REPLAY, 4, 5, 61, Class.DEGRADE),
        (Name.NVLINK_REPLAY, 4, 5, 5, Class.DRAIN),
        (Name.NVLINK_RECOVERY, 4, 5, 60, Class.DRAIN),
        (Name.NVLINK_RECOVERY, 4, 2, 60, Class.OBSERVE),
        (Name.NVLINK_CRC, 0, 6_000, 60, Class.DRAIN),
        (Name.NVLINK_CRC, 0, 5_999, 60, Class.DEGRADE),
        (Name.NVLINK_CRC, 0, 99, 0.5, Class.DEGRADE),
    ],
)
def test_errors_of_links_count_by_their_rate(kind: Name, first: int, last: int, apart: float, ucx: Class) -> None:
    """One replay or recovery a minute, a hundred CRC errors a second; without UCX they only degrade."""
    readings = (WELL, reading(f"{kind}.2", first, 1 + apart), reading(f"{kind}.2", last, 1))
    found = verdict(*readings, limits=UCX)
    assert (found.cls, found.rule) == (ucx, f"nvlink-errors.{kind}.2" if ucx is not Class.OBSERVE else "")
    assert verdict(*readings).cls is min(ucx, Class.DEGRADE, key=lambda cls: cls.rank)


@pytest.mark.parametrize(
    ("generation", "width", "rise", "cls"),
    [
        *((1, 16, 3, "observe"), (1, 16, 4, "degrade"), (2, 16, 5, "observe"), (2, 16, 6, "degrade")),
        *((3, 16, 8, "observe"), (3, 16, 9, "degrade"), (4, 16, 16, "observe"), (4, 16, 17, "degrade")),
        *((5, 16, 31, "observe"), (5, 16, 32, "degrade"), (6, 16, 31, "observe"), (6, 16, 32, "degrade")),
        *((5, 8, 16, "observe"), (5, 8, 17, "degrade"), (None, 16, 99, "observe"), (5, None, 99, "observe")),
    ],
)
def test_replays_of_the_bus_count_by_generation_and_lanes(
    generation: int | None, width: int | None, rise: int, cls: str
) -> None:
    """In a minute; later generations are taken for the last that is known."""
    found = verdict(
        *(WELL, reading(Name.PCIE_GENERATION, generation), reading(Name.PCIE_WIDTH, width)),
        *(reading(Name.PCIE_REPLAYS, 7, 61), reading(Name.PCIE_REPLAYS, 7 + rise, 1)),
    )
    assert (found.cls, found.rule) == (cls, "pcie.replays" if cls == "degrade" else "")


def test_rates_are_of_the_last_minute() -> None:
    """Not of all that was read, nor of the last two readings; and what was not read lately has no rate."""
    link, links = f"{Name.NVLINK_REPLAY}.0", Limits(protocol="ucx", remember=60)
    ages = {121: 0, 51: 4, 31: 5, 1: 5}
    found = verdict(WELL, *(reading(link, value, age) for age, value in ages.items()), limits=links)
    assert found.evidence == (f"{link}: 1 errors in 50 s",)
    width = (reading(Name.PCIE_GENERATION, 5), reading(Name.PCIE_WIDTH, 16))
    for age, cls in ((60.0, Class.DEGRADE), (60.1, Class.OBSERVE)):
        replays = (reading(Name.PCIE_REPLAYS, 0, age + 60), reading(Name.PCIE_REPLAYS, 32, age))
        assert verdict(WELL, *width, *replays).cls is cls
        assert verdict(WELL, *width, replays[1]).cls is Class.OBSERVE


@pytest.mark.parametrize(("width", "cls"), [(16, "observe"), (8, "degrade"), (0, "observe")])
def test_a_bus_narrower_than_it_could_be_degrades(width: int, cls: str) -> None:
    """A width of 0 is none."""
    assert verdict(WELL, reading(Name.PCIE_WIDTH, width), reading(Name.PCIE_WIDTH_MAX, 16)).cls == cls


def test_metrics_that_stand_still_leave_the_device_unknown() -> None:
    """Nobody knows what it does now."""
    found = verdict(WELL, reading(Name.STALE_METRICS, 7.0, text="they stand still"))
    assert (found.health, found.rule, found.evidence) == (
        *(Health.UNKNOWN, "work.stale-metrics", ("they stand still",)),
    )


def test_what_is_judged_by_its_rise_is_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it has no baseline, so its rule never fires: a name that a rule asks for by rise is in `COUNTERS`."""
    asked: set[str] = set()
    monkeypatch.setattr(Baseline, "rise", lambda self, r: asked.add(r.kind) or 0.0)
    monkeypatch.setattr(History, "rise", lambda self, name, seconds: asked.add(found_kind(name)) or (0.0, 0.0))
    for limits in (TCP, UCX):
        verdict(*(reading(name, 1) for name in Name), limits=limits)
    assert asked == COUNTERS


def test_every_rule_about_counters_has_its_edges() -> None:
    """In the table above, or in a test of its own that is named here."""
    elsewhere = {
        "temperature": test_heat_counts_within_two_degrees_of_shutdown,
        "memory-temperature": test_hot_memory_degrades,
        "slow-down": test_slow_down_by_hardware_counts_from_six_of_ten_minutes,
        "nvlink-errors": test_errors_of_links_count_by_their_rate,
        "pcie": test_replays_of_the_bus_count_by_generation_and_lanes,
    }
    found = set()
    for name, value, before, limits, _ in NAME_ONLY.values():
        found.add(verdict(WELL, reading(name, value), before=before, limits=limits).rule.partition(".")[0])
    assert {rule.name for rule in RULES if rule.judge.__module__ == counters.__name__} <= found | set(elsewhere)


# -- the baseline ----------------------------------------------------------------------------------------------------


def test_a_baseline_starts_where_counters_were_first_read() -> None:
    """And knows nothing of other devices, of states, and of what is no number."""
    base = Baseline(GPU).advance(
        [
            *(reading(Name.ECC_UNCORRECTED, 5, 9), reading(Name.ECC_UNCORRECTED, 7, 3), reading(Name.TEMPERATURE, 50)),
            *(Reading("nvml", OTHER, Name.PCIE_REPLAYS, 3, NOW), reading(Name.NVLINK_CRC, "N/A")),
        ]
    )
    assert base == Baseline(GPU, {Name.ECC_UNCORRECTED: 5})
    assert base.rise(reading(Name.ECC_UNCORRECTED, 7)) == 2


def test_a_counter_that_falls_was_reset_and_counts_from_there() -> None:
    """What it counted between the reset and the reading cannot be told."""
    base = Baseline(GPU, {Name.ECC_UNCORRECTED: 5})
    fallen = reading(Name.ECC_UNCORRECTED, 2)
    assert base.rise(fallen) == 0
    after = base.advance([fallen])
    assert after.rise(fallen) == 0
    assert after.rise(reading(Name.ECC_UNCORRECTED, 3)) == 1


def test_a_state_that_was_once_true_stays_in_the_baseline() -> None:
    """So a link that went down is not forgotten."""
    base = Baseline(GPU).advance([reading("nvlink-state.1", value=False, age=9), reading("nvlink-state.2", value=True)])
    base = base.advance([reading("nvlink-state.2", value=False)])
    assert base.values == {"nvlink-state.1": 0.0, "nvlink-state.2": 1.0}


def test_a_state_lasts_until_the_next_reading() -> None:
    """What changes is read more often than what does not: a third of the time is a third, in however many readings."""
    rarely, mostly = [], []
    for minute in range(10):
        begin = NOW - 60 * (minute + 1)
        rarely += [clocks(0x4, begin), clocks(0x4, begin + 20)]
        rarely += [clocks(0x40 | (i % 2) << 2, begin + 40 + 5 * i) for i in range(4)]
        mostly += [clocks(0x40, begin), *(clocks(0x4 << i % 2, begin + 40 + 5 * i) for i in range(4))]
    assert verdict(WELL, *rarely).health is Health.HEALTHY
    check(verdict(WELL, *mostly), Class.DRAIN, "slow-down")


def test_nothing_follows_for_a_time_in_which_nothing_was_read() -> None:
    """A reading tells of a minute at most."""
    assert verdict(WELL, clocks(0x40, NOW - 600)).health is Health.HEALTHY


def clocks(bits: int, time: float) -> Reading:
    return Reading("nvml", GPU, Name.CLOCKS_REASONS, bits, time)
