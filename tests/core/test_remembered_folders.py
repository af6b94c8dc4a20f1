"""The folder of a device: safe on any file system, its own, and one that people find."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.remembered import folder_of

GPU = "GPU-5f2b6a3e-1d0c-4b7a-9e8f-00112233aabb"
NAMES = st.one_of(
    st.text(),
    st.text("GPUMIgpumi-/0123456789abcdefABCDEF. ", max_size=50),
    st.sampled_from(
        ["MIG-GPU-1/2/3", "..", ".", "/", "a/b", "a\\b", "con", "x\0y", "\u017f", "\u212a", "é", "\udc80", "a" * 999]
    ),
    st.uuids().map(lambda uuid: f"GPU-{uuid}"),
    st.uuids().map(lambda uuid: f"gpu-{str(uuid).upper()}"),
)


@given(NAMES)
def test_a_folder_is_safe_anywhere(device):
    """It is one short plain name, which no file system reads as another one."""
    assert re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z-]{1,79}", folder_of(device))


@given(NAMES, NAMES)
def test_two_devices_never_share_a_folder(a, b):
    """Not on a file system either that does not tell small letters from capitals."""
    assert (folder_of(a).casefold() == folder_of(b).casefold()) == (a == b)


def test_folders_are_named_so_that_people_find_them():
    """A UUID is its own folder; of other names what is readable is there."""
    assert folder_of(GPU) == GPU
    assert folder_of(GPU.replace("GPU", "MIG")) == GPU.replace("GPU", "MIG")
    assert folder_of("MIG-GPU-5f2b/1/2").startswith("mig-gpu-5f2b-1-2-x")
    assert folder_of(GPU + "\n") != GPU
    assert folder_of(GPU.upper()).casefold() != GPU.casefold()
