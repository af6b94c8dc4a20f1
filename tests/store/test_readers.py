"""Readers of Zarr that know nothing of this package agree upon what lies in a store."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dask_resilient import partitions
from dask_resilient.core.manifest import Place
from dask_resilient.store import open_store
from tests.support.store_life import FACTS

READERS = ["zarr", "zarrs", "tensorstore"]


@dataclass(frozen=True)
class Layout:
    """One array, and how it is cut."""

    dtype: str
    shape: tuple[int, ...]
    rows: int
    names: tuple[str | None, ...] = ()
    fill: float | None = None

    def value(self):
        """Give random bits, or one value everywhere."""
        if self.fill is not None:
            return np.full(self.shape, self.fill, self.dtype)
        size = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        raw = np.random.default_rng(0).integers(0, 2 if self.dtype == "bool" else 256, size, np.uint8)
        return raw.view(self.dtype).reshape(self.shape)


LAYOUTS = {
    "one chunk": Layout("float64", (23,), 23),
    "many chunks": Layout("float64", (24,), 8),
    "padded edge": Layout("float32", (23, 5), 10),
    "a row a chunk": Layout("int64", (7, 3), 1),
    "three axes": Layout("int8", (5, 4, 3), 2),
    "four axes with names": Layout("float32", (4, 2, 3, 2), 3, ("time", "z", "y", "x")),
    "some names": Layout("uint16", (6, 4), 4, (None, "x")),
    "unsigned": Layout("uint64", (31,), 8),
    "small": Layout("int16", (1,), 1),
    "single numbers": Layout("uint32", (1, 1, 1), 1),
    "truth": Layout("bool", (19, 3), 5),
    "half": Layout("float16", (33,), 7),
    "complex": Layout("complex64", (9, 2), 4),
    "double complex": Layout("complex128", (9, 2), 9),
    "nothing": Layout("float64", (0,), 1),
    "no columns": Layout("float64", (4, 0), 2),
    "zeros": Layout("float64", (30, 2), 7, fill=0.0),
    "no numbers": Layout("float64", (30, 2), 7, fill=np.nan),
}


def run(reader, paths):
    """Give what a reader finds in some arrays, each in the order of `paths`."""
    program = Path(__file__).with_name("readers.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, program, reader, *map(str, paths)],
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def written(tmp_path_factory, stage):
    """Give the directory of each layout, and the value that is in it."""
    store = open_store(tmp_path_factory.mktemp("layouts") / "store", create=True)
    found = {}
    for n, (name, layout) in enumerate(LAYOUTS.items()):
        x = layout.value()
        place = Place("m", f"{n}", 0, "a")
        store.write(place, replace(stage(x, layout.rows), dimension_names=layout.names), FACTS)
        found[name] = (Path(store.url, place.data), x)
    return found


@pytest.mark.parametrize("reader", READERS)
def test_readers_agree(written, reader):
    """Each reader finds dtype, shape, names and every bit of each layout."""
    pytest.importorskip(reader)
    verdicts = run(reader, [path for path, _ in written.values()])
    for (name, layout), (_, x), verdict in zip(LAYOUTS.items(), written.values(), verdicts, strict=True):
        expected = {
            "dtype": layout.dtype,
            "shape": list(layout.shape),
            "digest": hashlib.sha256(x.tobytes()).hexdigest(),
            "names": list(layout.names) or None,
        }
        assert verdict == expected, name


def test_xarray_takes_the_names(written):
    """An array whose axes have names is labelled with them."""
    pytest.importorskip("xarray")
    (verdict,) = run("xarray", [written["four axes with names"][0]])
    assert verdict["names"] == ["time", "z", "y", "x"]


VALUES = {
    "array": np.arange(35.0).reshape(7, 5),
    "fortran": np.asfortranarray(np.arange(35.0).reshape(7, 5)),
    "big-endian": np.arange(5, dtype=">i4"),
    "times": np.array(["2026-01-01", "NaT"], "M8[ns]"),
    "records": np.zeros(3, [("a", "i4"), ("b", "f8")]),
    "scalar array": np.array(1.5),
    "frame": pd.DataFrame({"k": ["a", "b", None], "x": [1.5, 2.5, -0.0]}, index=pd.Index([3, 1, 2], name="id")),
    "empty frame": pd.DataFrame({"x": []}),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_agree_upon_partitions(tmp_path, reader):
    """Whatever the codecs stage, each reader opens, and finds the bytes that were saved."""
    pytest.importorskip(reader)
    store = open_store(tmp_path / "store", create=True)
    places = [Place("m", f"{n}", 0, "a") for n in range(len(VALUES))]
    for place, value in zip(places, VALUES.values(), strict=True):
        store.write(place, partitions.stage(value), FACTS)
    verdicts = run(reader, [Path(store.url, place.data) for place in places])
    for name, place, verdict in zip(VALUES, places, verdicts, strict=True):
        assert verdict["digest"] == hashlib.sha256(store.read(place, "k")[1].tobytes()).hexdigest(), name


@pytest.mark.parametrize("reader", ["zarrs", "tensorstore"])
def test_flipped_bit_is_an_error_of_every_reader(written, reader, tmp_path):
    """A reader that knows no receipts still notices a flipped bit, by the checksum in each chunk."""
    pytest.importorskip(reader)
    path = tmp_path / "flipped"
    shutil.copytree(written["many chunks"][0], path)
    raw = bytearray((path / "1").read_bytes())
    raw[10] ^= 1
    (path / "1").write_bytes(raw)
    (verdict,) = run(reader, [path])
    assert re.search("checksum|digest mismatch", verdict["error"], re.IGNORECASE)
