"""Settings: read once, checked, with one clear error."""

from __future__ import annotations

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
