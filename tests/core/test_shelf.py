"""What a store has of a milestone that other runs know."""

from __future__ import annotations

from dask_resilient.core.shelf import Shelf


def test_the_valid_receipt_is_used_or_the_next_generation_written():
    shelf = Shelf.of("m", "clean", 4, {"0": 0, "1": 2}, {"1": {0, 1}, "2": {0, 1}})
    assert [shelf.generation(index) for index in "0123"] == [0, 2, 2, 0]
    assert shelf.found == 2


def test_what_this_run_does_is_taken_in():
    shelf = Shelf.of("m", "clean", 2, {"0": 0}, {})
    shelf.put("1", 0, 80)
    assert shelf.valid == {"0": 0, "1": 0}
    assert shelf.sizes == {"1": 80}
    shelf.take("1", 0)
    assert shelf.valid == {"0": 0}
    assert shelf.sizes == {}
    assert shelf.generation("1") == 1
    assert shelf.found == 1
