"""Settings: read once, checked, with one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from dask_resilient import config
from dask_resilient.errors import SettingError


def test_the_defaults_of_the_yaml_are_the_defaults_of_the_class() -> None:
    """One truth: the file that users read."""
    assert config.read() == config.Settings()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("resilience.sotre", "/x", "did you mean resilience.store?"),
        ("resilience.save.memroy", 0.1, "did you mean resilience.save.memory?"),
        ("resilience.nonsense-altogether", 1, "there is no setting resilience.nonsense-altogether"),
        ("resilience.save.memory", 1.5, "between 0 and 1"),
        ("resilience.save.memory", "a lot", "must be a number"),
        ("resilience.save.task-wait", "soon", "must be a time"),
        ("resilience.recover.margin", 0.5, "at least 1"),
        ("resilience.leave", -1, "not negative"),
        ("resilience.enabled", "no", "true or false"),
        ("resilience.store", 7, "path or a file:// URL"),
        ("resilience.codecs", "my.module", "a list of names of modules"),
        ("resilience.probe.interval", "0.1s", "at least 0.5"),
        ("resilience.probe.interval", "1 minute", "at most 30"),
        ("resilience.probe.canary", "often", "must be a time"),
        ("resilience.probe.canary", "", "must be a time"),
        ("resilience.probe.canary", "1e999", "must be a"),
        ("resilience.probe.canary", float("inf"), "must be a number"),
        ("resilience.probe.canary", 10**400, "must be a number"),
        ("resilience.probe.hang", 10**400, "a number of times"),
        ("resilience.probe.kernel-log", "\0", "a path"),
        ("resilience.probe.hang", 1.5, "a number of times from 2 on, or null"),
        ("resilience.probe.hang", True, "a number of times from 2 on, or null"),
        ("resilience.probe.kernel-log", None, "a path"),
        ("resilience.probe.rules", 7, "a path to a YAML file"),
        ("resilience.probe.rules", "", "a path to a YAML file, or null"),
        ("resilience.probe", False, "resilience.probe = False must be a mapping such as {enabled: false}"),
        ("resilience.probe", "x", "resilience.probe = 'x' must be a mapping such as {enabled: false}"),
        ("resilience.probe", None, "resilience.probe = None must be a mapping such as {enabled: false}"),
        ("resilience.save", 0.1, "resilience.save = 0.1 must be a mapping such as {memory: 0.1}"),
        ("resilience", False, "resilience = False must be a mapping such as {enabled: false}"),
        ("resilience.probe.enabld", True, "did you mean resilience.probe.enabled?"),
        ("resilience", 3, "must be a mapping"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_its_value(key: str, value: object, words: str) -> None:
    """A typo gets a suggestion."""
    with dask.config.set({key: value}), pytest.raises(SettingError, match=r"resilience") as error:
        config.read()
    assert words in str(error.value)


def test_times_are_read_as_dask_reads_them() -> None:
    """Text with a unit, or seconds."""
    with dask.config.set({"resilience.save.task-wait": "2 minutes", "resilience.leave": 7}):
        settings = config.read()
    assert (settings.save_task_wait, settings.leave) == (120.0, 7.0)


@pytest.mark.parametrize("text", ["resilience: {probe: false}", "resilience: {probe: }", "resilience: off"])
def test_a_group_that_is_none_in_a_file_of_dask_is_named(text: str, tmp_path: Path) -> None:
    """Dask itself puts the defaults in its place, so it is looked for before."""
    (tmp_path / "mine.yaml").write_text(text)
    code = "from dask_resilient import config; config.read()"
    env = {**os.environ, "DASK_CONFIG": str(tmp_path / "mine.yaml")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "must be a mapping such as {enabled: false}" in done.stderr


def test_no_time_for_the_canary_is_never() -> None:
    """As 0 is; elsewhere null is no time."""
    with dask.config.set({"resilience.probe.canary": None}):
        assert config.read().probe_canary == 0
    with dask.config.set({"resilience.leave": None}), pytest.raises(SettingError, match="must be a number"):
        config.read()


def test_a_file_of_rules_is_found_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a text, or as a path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rules.yaml").write_text("xid: {79: {class: drain}}")
    for given in ("~/rules.yaml", Path("~/rules.yaml"), tmp_path / "rules.yaml"):
        with dask.config.set({"resilience.probe.rules": given}):
            path = config.read().probe_rules
        rules = config.read_rules(path)
        assert rules == {"file": str(given), "xid": {79: {"class": "drain"}}}


def test_a_file_of_rules_is_read_on_the_client(tmp_path: Path) -> None:
    """And checked there; what it says travels."""
    path = tmp_path / "rules.yaml"
    path.write_text("xid:\n  79: {class: drain}\n")
    assert config.read_rules(str(path)) == {"file": str(path), "xid": {79: {"class": "drain"}}}
    assert config.read_rules(None) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("- 79", "must hold a mapping"),
        ("", "must hold a mapping"),
        ("xid: {79: {class: worse}}", "class = 'worse' must be one of"),
        ("xids: {}", "no section 'xids'"),
        ("file: other.yaml", "no section 'file'"),
        ("xid:\n  79: {class: drain}\n  13: {class: kill}\n  79: {class: kill}", "line 4: '79' is there twice"),
        ("xid: {79: {class: drain,\n class: kill}}", "line 2: 'class' is there twice"),
        ("xid: {}\ncuda: {}\nxid: {}", "line 3: 'xid' is there twice"),
        ("cuda: {many: {class: kill}}", "give a number such as 700"),
        ("xid: {many: {class: kill}}", "give a number such as 79"),
        ("cuda: [700]", "as 700: {class: drain}"),
        ("xid: {79: {class: drain}", "cannot be read"),
        ("xid: {79: 2024-13-45}", "cannot be read"),
        ("[" * 20_000, "cannot be read"),
        ("xid: {79: " + "9" * 5_000 + "}", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_file_of_rules_that_cannot_work_is_named(text: str | bytes | None, words: str, tmp_path: Path) -> None:
    """With the place in it."""
    path = tmp_path / "rules.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingError, match=r"rules\.yaml") as error:
        config.read_rules(str(path))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
