"""What `checkpoint` refuses at the call, and how names are shown."""

from __future__ import annotations

from enum import StrEnum

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from dask.utils import key_split

from dask_resilient.errors import SettingError, UnsupportedType
from dask_resilient.graph import checkpoint
from dask_resilient.graph.milestone import MAX_NAME
from dask_resilient.tasks import SaveTask

GOOD = {
    "clean": "checkpoint-clean",
    "a-b": "checkpoint-a-b",
    "Clean": "checkpoint-Clean",
    "x": "checkpoint-x",
    "stage2": "checkpoint_stage2",
    "2024": "checkpoint_2024",
    "step_1": "checkpoint_step_1",
    "step-1": "checkpoint_step_1",
    "v1.2": "checkpoint_v1.2",
    "a--b": "checkpoint_a__b",
    "a-": "checkpoint_a_",
    "_x": "checkpoint__x",
    "deadbeef": "checkpoint_deadbeef",
    "to-deadbeef": "checkpoint_to_deadbeef",
    "n" * MAX_NAME: "checkpoint-" + "n" * MAX_NAME,
    "9" * MAX_NAME: "checkpoint_" + "9" * MAX_NAME,
}


@pytest.mark.parametrize(("name", "shown"), GOOD.items(), ids=[name[:12] for name in GOOD])
def test_progress_bars_show_the_whole_name(name, shown):
    """Dask groups the tasks of a milestone under one prefix that holds its name."""
    frame = dd.from_pandas(pd.DataFrame({"x": [1]}), npartitions=1)
    keys = [checkpoint(da.ones(3), name).name, checkpoint(delayed(1), name).key, checkpoint(frame, name)._name]
    assert [key_split(key) for key in keys] == [shown] * 3


@pytest.mark.parametrize("name", [np.str_("clean"), StrEnum("Stage", {"CLEAN": "clean"}).CLEAN], ids=repr)
def test_a_name_of_another_kind_of_text_becomes_plain(name):
    """What goes to schedulers and workers is of plain types."""
    frame = dd.from_pandas(pd.DataFrame({"x": [1]}), npartitions=1)
    for marked in (checkpoint(da.ones(3), name), checkpoint(frame, name)):
        (node,) = (t for t in dict(marked.__dask_graph__()).values() if isinstance(t, SaveTask))
        assert type(node.ticket["name"]) is str


BAD = {
    None: "is a str, not NoneType",
    7: "is a str, not int",
    b"clean": "is a str, not bytes",
    "": "is empty",
    "n" * (MAX_NAME + 1): "at most 100 characters, this has 101",
    "a/b": "'/' at position 1",
    "..": "cannot begin with '.'",
    "../up": "'/' at position 2",
    "C:\\x": "':' at position 1",
    "a\\b": r"'\\\\' at position 1",
    ".hidden": "cannot begin with '.'",
    "-rf": "cannot begin with '-'",
    "a b": "' ' at position 1",
    " a": "' ' at position 0",
    "a\n": r"'\\n' at position 1",
    "a\tb": r"'\\t' at position 1",
    "a\0": r"'\\x00' at position 1",
    "a\x7f": r"'\\x7f' at position 1",
    "é": "'é' at position 0",
    "a*": r"'\*' at position 1",
    "a\u2028": r"'\\u2028' at position 1",
    "a\ud800": r"'\\ud800' at position 1",
}


@pytest.mark.parametrize(("name", "says"), BAD.items(), ids=[ascii(name)[:12] for name in BAD])
def test_a_name_that_is_no_file_name_is_refused(name, says):
    """The error says in one line what is wrong and which character it is."""
    with pytest.raises(SettingError, match=says) as caught:
        checkpoint(da.ones(3), name)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"version": 1.5}, "version=1.5 is no str, int or None"),
        ({"version": True}, "version=True is no str"),
        ({"version": ("a",)}, "is no str"),
        ({"keep": 1}, "keep=1 is no bool"),
        ({"keep": None}, "keep=None is no bool"),
    ],
)
def test_a_setting_of_another_type_is_refused(settings, says):
    """`version` and `keep` are checked before anything is built."""
    with pytest.raises(SettingError, match=says):
        checkpoint(da.ones(3), "clean", **settings)


@pytest.mark.parametrize(
    "thing", [5, None, np.ones(3), pd.DataFrame(), [da.ones(3)], {"a": da.ones(3)}, da.Array, len], ids=repr
)
def test_what_is_no_collection_is_refused(thing):
    """The error names the type and points to dask.delayed."""
    says = rf"type {type(thing).__name__}, which is no Dask collection.* dask\.delayed"
    with pytest.raises(UnsupportedType, match=says) as caught:
        checkpoint(thing, "clean")
    assert isinstance(caught.value, TypeError)


def frame():
    return dd.from_pandas(pd.DataFrame({"x": range(8)}), npartitions=2)


def marked_frame():
    return checkpoint(frame(), "clean")


def marked_array():
    return checkpoint(da.ones(4, chunks=2), "clean")


ABOVE = {
    "directly": marked_array,
    "array of an array": lambda: (marked_array() + 1)[0],
    "array over a delayed value": lambda: da.ones(2).map_blocks(np.add, checkpoint(delayed(1), "clean"), dtype=float),
    "delayed of an array": lambda: delayed(sum)([marked_array(), 1]),
    "block of an array": lambda: (marked_array() + 1).to_delayed()[0],
    "optimised array": lambda: dask.optimize(marked_array() + 1)[0],
    "dataframe of a dataframe": lambda: marked_frame().groupby("x").x.sum() + 1,
    "optimised dataframe": lambda: dask.optimize(marked_frame().x + 1)[0],
    "delayed of a dataframe": lambda: delayed(len)(marked_frame()),
    "part of a dataframe": lambda: marked_frame().to_delayed()[0],
    "dataframe over delayed values": lambda: dd.from_delayed(marked_frame().to_delayed(), meta={"x": int}),
    "array of a dataframe": lambda: marked_frame().values,
    "dataframe of an array": lambda: dd.from_dask_array(marked_array()),
    "dataframe with an array": lambda: frame().assign(y=checkpoint(da.arange(8, chunks=4), "clean")),
    "dataframe with a delayed value": lambda: frame().map_partitions(
        lambda part, _: part, checkpoint(delayed(1), "clean"), meta=frame()
    ),
    "dataframe with a named delayed value": lambda: frame().map_partitions(
        lambda part, by: part, by=checkpoint(delayed(1), "clean"), meta=frame()
    ),
    "another milestone between": lambda: checkpoint(marked_array() + 1, "other") + 1,
}


@pytest.mark.parametrize("make", ABOVE.values(), ids=ABOVE)
def test_a_name_among_its_own_ancestors_is_refused(make):
    """Two milestones of one name in one line of descent are one error at the call; another name is fine."""
    x = make()
    with pytest.raises(SettingError, match="'clean' already stands below this collection"):
        checkpoint(x, "clean")
    checkpoint(x, "clean2")


def test_names_that_are_shown_alike_are_told_apart():
    """The name in the ticket counts, not the text in the key."""
    checkpoint(checkpoint(da.ones(3), "step-1"), "step_1")


def test_looking_for_ancestors_materialises_no_layer():
    """Marking costs nothing that grows with layers which Dask has not spelled out."""
    x = da.ones((100, 100), chunks=10) + 1
    checkpoint(x, "clean")
    assert not any(layer.is_materialized() for layer in x.dask.layers.values())


def test_switched_off_checkpoint_gives_back_what_it_was_given():
    """No task is added."""
    x = da.ones(4, chunks=2)
    with dask.config.set({"resilience.enabled": False}):
        assert checkpoint(x, "clean") is x


def test_a_typo_in_a_setting_is_told_at_the_call():
    """With the setting that was meant."""
    with dask.config.set({"resilience.enabeld": False}), pytest.raises(SettingError, match=r"resilience\.enabled"):
        checkpoint(da.ones(4), "clean")
