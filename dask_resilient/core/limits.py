"""The thresholds by which readings are judged, each with where it comes from.

Sources: *DCGM* is NVIDIA's Data Center GPU Manager (health checks), *gpud* Lepton's monitor, *NHC* Azure's node health
checks, *NVSentinel* NVIDIA's. *Judgement* means that none of them says it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dask_resilient.core import xid


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as how bad; times in seconds, temperatures in degrees Celsius."""

    protocol: str = "tcp"
    """Of the cluster: links between devices matter where it is UCX's."""
    xids: xid.Table = field(default_factory=lambda: xid.TABLE)
    """With the rows of the user's file."""

    fresh: float = 60.0
    """Age up to which a reading tells of the present. Judgement: DCGM and nvrx read once a minute."""
    remember: float = 600.0
    """Age up to which an event counts. Judgement: the ten minutes of the slow-down rule."""

    tried: float = 1_800.0
    """Age up to which a canary that was right proves that the device works. Judgement: three times the interval."""

    shutdown_margin: float = 2.0
    """Degrees from the temperature of shutdown. Judgement, on NVIDIA's slowdown offset of -2 (H100, NVSentinel)."""
    slow_minutes: int = 6
    """Minutes of the last ten with hardware slowdown. Source: gpud, 0.6 events a minute over ten minutes."""

    corrected_dram: int = 20_000_000
    """Corrected errors of memory since the baseline. Source: NHC."""
    corrected_sram: int = 10_000
    """Corrected errors of caches since the baseline. Source: NHC."""
    remapped_rows: int = 512
    """Rows remapped for uncorrectable errors, of which more is too many. Source: DCGM, NHC."""
    retired_pages: int = 63
    """Pages retired on devices before Ampere. Source: DCGM."""

    link_errors: float = 1.0
    """NVLink replays or recoveries a minute. Source: DCGM."""
    link_crc: float = 100.0
    """NVLink CRC errors a second. Source: DCGM."""
    bit_error_rate: float = 1e-12
    """NVLink effective bit errors per bit, of which more is too many. Source: DCGM."""

    suspect_silence: float = 15.0
    """Silence of a probe from which the device is in doubt. Source: NVSentinel, period of its probe watchdog."""
    hung_silence: float = 45.0
    """Silence from which a device counts as hung. Source: NVIDIA, one GSP RPC timeout; NVSentinel, 3 x 15 s."""
    timeouts: int = 2
    """Probes in a row that must have fallen silent beside that. Judgement: one may have had no processor time."""

    repeats: int = 2
    """Incidents of one XID from which its row's ``repeat`` counts. Source: NVSentinel."""
    repeat_seconds: float = 86_400.0
    """In which they are counted. Source: NVSentinel, 24 h."""

    slow_down: float = 2.0
    """Times by which a device is slower than others on the same work. Judgement."""

    least_memory: float = 0.02
    """Share of the host's memory that must be available. Judgement."""
    least_disk: float = 0.02
    """Share of the worker's disk that must be free. Judgement."""
    most_files: float = 0.9
    """Share of the files that a process may open that it may have open. Judgement."""

    @property
    def links(self) -> bool:
        """Say whether devices talk to each other over their own links."""
        return self.protocol.startswith("ucx")


PCIE_REPLAYS = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92}
"""Replays a minute and lane that a PCIe generation may have. Source: DCGM, from a bit error rate of 1e-12."""
