"""Settings: read once, checked, with one clear error."""

from __future__ import annotations

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
