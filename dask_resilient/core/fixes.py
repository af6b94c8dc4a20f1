"""What a human has to do about a fault: the few things that there are, for a column of the tables of faults.

Nothing of this is done by this package. Sources: of an XID it is NVIDIA's immediate action, the "resolution bucket" of
"Analyzing Xid Errors with the Xid Catalog", whose names stand in capitals below; of the recovery action NVIDIA's "GPU
Memory Error Management", "Error Recovery and Response Flags"; of memory that is to be replaced its "RMA Policy". Where
the row of another table says so, it is the practice of a tool or judgement of ours.
"""

from __future__ import annotations

from enum import StrEnum


class Fix(StrEnum):
    """What is to be done, the mildest first."""

    NOTHING = "nothing"
    """There is nothing to do. NVIDIA: IGNORE."""
    OTHER = "see the other"
    """It follows from another fault, or reports one: do what that one asks for. NVIDIA of XID 45, where it comes alone:
    restart the fabric manager."""
    JOB = "look at the job"
    """The code of the tasks, or what it asks of CUDA, is the first suspect. NVIDIA: CHECK_APP/CUDA, such as a run under
    the Compute Sanitizer."""
    APP = "restart the application"
    """The process has to be replaced. NVIDIA: RESTART_APP. Of a worker with a nanny this package does so by itself, and
    nothing is left to do; any other process is its owner's. Where it comes again and again, look at the job."""
    HOST = "look at the host"
    """Its load, memory, disk, cooling, power and driver: does `nvidia-smi` answer there, and list the GPU?"""
    LATER = "reset the GPU when it is idle"
    """What runs may go on until then. The reset itself is as below."""
    PEERS = "stop traffic between GPUs"
    """End the processes that use NVLink or CUDA IPC with this GPU, and look at the recovery action again."""
    LINK = "check the link"
    """`nvidia-smi nvlink --status` and `--errorcounters` on the host. The cause may lie at the other end. Follow
    NVIDIA's workflow for the number (WORKFLOW_NVLINK_ERR, WORKFLOW_NVLINK5_ERR). A reset or a reboot clears it; where
    it comes back after that, open a ticket."""
    SEAT = "check the connections"
    """Is the GPU seated, are power and all other cables firm? NVIDIA: CHECK_MECHANICALS."""
    UPDATE = "update the software"
    """Bring driver, firmware and libraries to versions that fit each other. NVIDIA: UPDATE_SWFW."""
    DIAGNOSE = "run the diagnostics"
    """Keep the device out of service, and run DCGM's diagnostics on the idle GPU: `dcgmi diag -r 3`."""
    RESET = "reset the GPU"
    """End every process that uses the GPU, then `nvidia-smi --gpu-reset -i <UUID>` as root. NVIDIA: RESET_GPU. Where
    that fails, or the fault comes back, reboot; where it comes back after that, open a ticket."""
    REBOOT = "reboot"
    """Save what the other GPUs of the host hold: `res.quarantine(device, reason)` each, and wait until they are
    quarantined. Restart the machine (NVIDIA: RESTART_BM), or the virtual machine that owns the GPU (RESTART_VM). Then
    release all of them. Where the scheduler runs there, the run ends."""
    TICKET = "open a ticket"
    """Keep it out of service with `res.quarantine(device, reason)`: only a release brings it back then. Run
    `nvidia-bug-report.sh` before a reset wipes the traces, and go to the vendor: NVIDIA's field diagnostic says whether
    it is to be replaced (RMA). NVIDIA: CONTACT_SUPPORT."""
    UNKNOWN = "nothing known"
    """No source says what to do. Do what the words of the row ask for, look at the recovery action, else open a
    ticket."""
