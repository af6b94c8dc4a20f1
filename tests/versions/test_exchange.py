"""What one pandas stores another one reads: the same, or not at all and it says why.

Runs in an environment with the newest pandas; the variable ``OTHER_PYTHON`` names the interpreter of another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE, OTHER = sys.executable, os.environ.get("OTHER_PYTHON", "")
SCRIPT = Path(__file__).with_name("exchange.py")


def call(python, *arguments):
    """Run the script under an interpreter, and give what it prints."""
    done = subprocess.run([python, SCRIPT, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pandas_of(python):
    """Give the version of pandas of an interpreter."""
    code = "import pandas; print(*pandas.__version__.split('.')[:2])"
    return tuple(map(int, subprocess.check_output([python, "-c", code], text=True).split()))


@pytest.mark.parametrize(("writer", "reader"), [(HERE, OTHER), (OTHER, HERE)], ids=["to the other", "from the other"])
def test_tables_cross_versions_of_pandas(writer, reader, tmp_path):
    """Every table comes back the same, but strings with NaN where the reading pandas has none: that is said."""
    assert OTHER, "set OTHER_PYTHON to the interpreter of an environment with another pandas"
    call(writer, "write", tmp_path)
    endings = json.loads(call(reader, "read", tmp_path))
    assert len(endings) > 100
    others = {name: ending for name, ending in endings.items() if ending != "same"}
    if pandas_of(reader) >= (2, 3) or pandas_of(writer) < (2, 3):
        assert not others
    unclear = {name: end for name, end in others.items() if "install pandas 2.3 or newer" not in end}
    assert not unclear
