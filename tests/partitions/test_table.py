from __future__ import annotations

import subprocess
import sys
import threading
import types
import zlib

import numpy as np
import pytest

import dask_resilient as dr
from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, SettingError, Unreachable
from dask_resilient.partitions import table
from dask_resilient.partitions.buffers import stage_bytes

BYTES = np.arange(8, dtype=np.uint8)


class Thing:
    pass


class Kin(Thing):
    pass


class ThingCodec:
    """Stores nothing of a thing, and fails with `error` if that is set."""

    name = "tests.thing"
    error = None

    def stage(self, value):
        if self.error:
            raise self.error
        return stage_bytes(self.name, {}, [])

    def restore(self, schema, payload):
        if self.error:
            raise self.error
        return Thing()


@pytest.fixture
def codec(monkeypatch):
    for name in ("_LOADERS", "_LOADED", "_TYPES"):
        monkeypatch.setattr(table, name, dict(getattr(table, name)))
    return ThingCodec()


def register(codec, **kwargs):
    partitions.register(codec.name, lambda: codec, [(Thing.__module__, "Thing")], **kwargs)


def test_lookup_imports_no_library():
    """Importing the room, and staging arrays or Python's own values, import neither pandas nor other libraries."""
    code = (
        "import sys, numpy, dask_resilient; before = set(sys.modules)\n"
        "from dask_resilient import partitions as p; p.stage(p); p.stage([5, numpy.float32(1), numpy.ones(2)])\n"
        "late = {'ml_dtypes', 'pandas', 'pyarrow', 'pytz', 'scipy', 'sparse'} & (set(sys.modules) - before)\n"
        "sys.exit(', '.join(late) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [{1}, range(3), bytearray(2), Ellipsis, Thing(), Thing, types])
def test_type_without_a_codec_is_declined(value):
    """A type that is not in the table is declined by its name."""
    kind = type(value)
    assert partitions.stage(value) == Declined(f"no codec for {kind.__module__}.{kind.__qualname__}")


def test_subclass_is_declined_unless_declared_safe(codec):
    """A subclass is looked up through its bases only where the row says so."""
    register(codec)
    assert partitions.stage(Kin()).reason.startswith("no codec for")
    assert partitions.stage(Thing()).codec == codec.name


def test_subclass_that_is_declared_safe_is_staged(codec):
    """A row for subclasses serves them."""
    register(codec, subclasses=True)
    assert partitions.stage(Kin()).codec == codec.name


def test_registering_twice_is_an_error(codec):
    """Neither a name nor a type can be taken from another codec."""
    register(codec)
    with pytest.raises(SettingError, match="registered already"):
        register(codec)
    with pytest.raises(SettingError, match="have a codec already"):
        partitions.register("other", lambda: codec, [("numpy", "ndarray")])
    assert "other" not in table._LOADERS


BAD = {
    "no name": (5, list, [("m", "T")], "no name of a codec"),
    "empty name": ("", list, [("m", "T")], "no name of a codec"),
    "no function": ("a", None, [("m", "T")], "cannot be called"),
    "no pairs": ("a", list, ("numpy", "ndarray"), r"such as \[\('my_package', 'Thing'\)\]"),
    "a type itself": ("a", list, [Thing], "must be pairs"),
    "one name": ("a", list, "Thing", "must be pairs"),
    "three names": ("a", list, [("m", "T", "x")], "must be pairs"),
    "nothing": ("a", list, [], "must be pairs"),
    "no list": ("a", list, 5, "must be pairs"),
}


@pytest.mark.parametrize("name", BAD)
def test_registration_that_cannot_work_is_an_error(codec, name):
    """What is registered wrongly is said at once, with what to write instead, and changes nothing."""
    *args, reason = BAD[name]
    before = dict(table._TYPES)
    with pytest.raises(SettingError, match=reason):
        dr.register_codec(*args)
    assert before == table._TYPES


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError(), RecursionError(), ImportError("no lib")])
def test_failure_while_staging_is_declined(codec, error):
    """Whatever a codec raises: the value stays unsaved and the task goes on."""
    codec.error = error
    register(codec)
    assert partitions.stage(Thing()) == Declined(f"codec 'tests.thing' failed: {error!r}")


def test_codec_that_cannot_be_loaded_is_declined(codec):
    """A codec whose library is missing declines on saving, and is unreachable on loading."""

    def load():
        raise ImportError("no lib")

    partitions.register("broken", load, [(Thing.__module__, "Thing")])
    assert "no lib" in partitions.stage(Thing()).reason
    with pytest.raises(Unreachable, match="no lib"):
        partitions.restore("broken", {}, BYTES)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (ImportError("no lib"), Unreachable),
        (MemoryError(), Unreachable),
        (Unreachable("zone"), Unreachable),
        (Foreign("other"), Foreign),
        (KeyError("x"), Foreign),
        (RecursionError(), Foreign),
        (OSError("strange"), Foreign),
    ],
)
def test_failure_while_restoring_has_its_ending(codec, error, ending):
    """What is missing here is unreachable; what does not describe a value is foreign."""
    codec.error = error
    register(codec)
    with pytest.raises(ending):
        partitions.restore(codec.name, {}, BYTES)


@pytest.mark.parametrize("name", ["pickle", "os.system", "", "numpy", "NUMPY.NDARRAY"])
def test_unknown_codec_is_unreachable(name):
    """A codec that is not registered here may be registered elsewhere."""
    with pytest.raises(Unreachable, match="not registered here"):
        partitions.restore(name, {}, BYTES)


@pytest.mark.parametrize("schema", [None, [], "x", 5])
@pytest.mark.parametrize("codec", ["numpy.ndarray", "numpy.ma", "pandas", "python", "scipy.sparse", "sparse"])
def test_schema_that_is_no_object_is_foreign(codec, schema):
    """A schema of another shape than an object describes nothing."""
    with pytest.raises(Foreign):
        partitions.restore(codec, schema, BYTES)


def test_payload_must_be_flat_bytes():
    """A payload of another form is refused before the codec sees it."""
    with pytest.raises(Foreign, match="flat array of bytes"):
        partitions.restore("numpy.ndarray", {}, np.ones((2, 2)))


def test_digest_is_crc32c_of_each_chunk():
    """The digest of a chunk does not depend on how it is split into buffers; the check value is the published one."""
    whole, parts = memoryview(b"123456789"), (memoryview(b"1234"), memoryview(b""), memoryview(b"56789"))
    assert partitions.digest([(whole,), parts, ()]) == (0xE3069283, 0xE3069283, 0)
    assert zlib.crc32(whole) != 0xE3069283


def test_threads_share_a_codec():
    """Many threads may stage at once from the first call on."""
    table._LOADED.clear()
    results = []
    threads = [threading.Thread(target=lambda: results.append(partitions.stage(np.ones(9)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.crc32c for each in results] == [results[0].crc32c] * 8
