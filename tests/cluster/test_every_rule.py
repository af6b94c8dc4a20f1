"""Every rule of the detour, and every case that forced one, has a test of its own; here stands which.

They were found by fuzzing and by reading Dask's source, and random faults alone find few of them again. So a test that
is taken away or renamed fails here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent

RULES: dict[str, tuple[str, ...]] = {
    "1 the worker unlinks what the message does not name": (
        "cluster/test_entering.py::test_stale_worker_deps",
        "contracts/test_workers.py::test_a_worker_keeps_old_dependencies",
        "cluster/test_loaders.py::test_no_load_goes_to_a_worker_that_has_not_reported",
        "cluster/test_loaders.py::test_all_workers_unready_means_no_detour",
    ),
    "2 enter and leave by wrapped rows": (
        "cluster/test_rules_rest.py::test_no_row_is_replaced",
        "contracts/test_transitions.py::test_no_row_leaves_an_active_state_but_the_wrapped_ones",
        "contracts/test_transitions.py::test_only_released_becomes_waiting",
        "cluster/test_leaving.py::test_a_second_loss_finds_the_whole_lineage",
    ),
    "3 leave the waiters of dependencies, and let go of them": (
        "cluster/test_entering.py::test_waiters_leak",
        "cluster/test_entering.py::test_a_dependency_that_somebody_else_needs_stays",
        "cluster/test_entering.py::test_a_dependency_that_only_waits_is_given_up",
    ),
    "4 memory -> released: nothing is started for what will be loaded": (
        "cluster/test_entering.py::test_commit_while_processing_then_loss",
        "cluster/test_entering.py::test_lost_dep_pending_waiting",
        "cluster/test_entering.py::test_lost_after_dep_erred",
    ),
    "5 lost lineage does not matter to a load, and is not forgotten": (
        "cluster/test_entering.py::test_lost_after_scatter_lost",
        "cluster/test_rules_rest.py::test_lineage_that_is_lost_while_parked",
    ),
    "6 not entering with an erred dependency is an error": ("cluster/test_entering.py::test_dep_erred_while_detoured",),
    "7 an erred dependency takes no copy with it": (
        "cluster/test_entering.py::test_resubmit_after_dep_erred",
        "cluster/test_entering.py::test_wanted_again_after_dep_erred",
        "cluster/test_rules_rest.py::test_an_erred_dependency_of_a_key_that_nobody_wants",
    ),
    "8 a failed load is never the user's error": (
        "cluster/test_leaving.py::test_load_raises",
        "cluster/test_leaving.py::test_load_kills_workers",
        "cluster/test_leaving.py::test_killed_worker_is_not_the_users_error",
        "cluster/test_rules_rest.py::test_what_is_charged_to_the_key_is_kept_aside",
    ),
    "9 pins are cleared, resources are kept": (
        "cluster/test_leaving.py::test_pins_are_cleared_and_put_back",
        "cluster/test_rules_rest.py::test_host_pins_are_cleared_and_put_back",
        "cluster/test_leaving.py::test_a_restriction_set_meanwhile_wins",
        "cluster/test_leaving.py::test_resource_kept",
        "cluster/test_loaders.py::test_other_workers_allowed_does_not_mean_unready_ones",
    ),
    "10 the pin of P2P is taken off": ("cluster/test_leaving.py::test_p2p_stale_pin",),
    "11 rows ask whether the plugin is registered": (
        "cluster/test_registering.py::test_unregister_midway",
        "cluster/test_registering.py::test_a_loss_right_after_unregistering",
        "cluster/test_registering.py::test_registered_over_the_first",
        "cluster/test_registering.py::test_registered_twice",
    ),
    "12 a copy that turns up is used by what waits": (
        "cluster/test_waiting.py::test_commit_while_waiting",
        "cluster/test_waiting.py::test_commit_while_queued",
        "cluster/test_waiting.py::test_commit_while_no_worker",
        "cluster/test_waiting.py::test_commit_while_processing_is_left_alone",
    ),
    "13 a load says how it ended, of which attempt": (
        "cluster/test_rules_rest.py::test_whatever_a_load_raises",
        "cluster/test_unreachable.py::test_a_late_ending_of_an_older_copy_changes_nothing",
        "cluster/test_unreachable.py::test_unreachable_from_one_worker",
        "cluster/test_endings.py::test_damaged",
        "cluster/test_endings.py::test_foreign",
        "cluster/test_leaving.py::test_resume_load_then_real",
    ),
    "14 what is left alone": (
        "cluster/test_leaving.py::test_actors_are_left_to_dask",
        "cluster/test_rules_rest.py::test_scattered_data_is_left_to_dask",
        "cluster/test_leaving.py::test_what_a_load_produced_is_not_saved_again",
        "contracts/test_workers.py::test_inner_tasks_of_a_shuffle_are_recognised",
    ),
    "15 the time of a load is not the task's": (
        "cluster/test_leaving.py::test_durations",
        "contracts/test_workers.py::test_only_work_that_is_called_compute_counts_as_the_tasks_duration",
    ),
    "16 parked keys show their lineage to a resubmission": ("cluster/test_leaving.py::test_resubmit_while_loading",),
    "17 anchors are private": (
        "cluster/test_entering.py::test_anchors_are_private",
        "contracts/test_transitions.py::test_a_task_outside_of_the_scheduler_is_private",
    ),
    "lives: nothing of a key that was forgotten counts for a new one": (
        "cluster/test_lives.py::test_a_forgotten_key_is_computed_anew",
        "cluster/test_lives.py::test_a_late_commit_of_a_forgotten_task",
        "cluster/test_lives.py::test_an_overtaken_run_is_not_saved_as_the_new_one",
    ),
}
"""Rules, and the tests that hold them."""

CASES: dict[str, str] = {
    "1 stale_worker_deps": "cluster/test_entering.py::test_stale_worker_deps",
    "2 waiters_leak": "cluster/test_entering.py::test_waiters_leak",
    "3 commit_while_processing_then_loss": "cluster/test_entering.py::test_commit_while_processing_then_loss",
    "3 lost_dep_pending_waiting": "cluster/test_entering.py::test_lost_dep_pending_waiting",
    "4 dep_erred_while_detoured": "cluster/test_entering.py::test_dep_erred_while_detoured",
    "5 lost_after_dep_erred": "cluster/test_entering.py::test_lost_after_dep_erred",
    "6 resubmit_after_dep_erred": "cluster/test_entering.py::test_resubmit_after_dep_erred",
    "7 lost_after_scatter_lost": "cluster/test_entering.py::test_lost_after_scatter_lost",
    "8 load_raises": "cluster/test_leaving.py::test_load_raises",
    "9 load_kills_workers": "cluster/test_leaving.py::test_load_kills_workers",
    "10 unregister_midway": "cluster/test_registering.py::test_unregister_midway",
    "10 registered_twice": "cluster/test_registering.py::test_registered_twice",
    "11 resubmit_while_loading": "cluster/test_leaving.py::test_resubmit_while_loading",
    "12 commit_while_waiting": "cluster/test_waiting.py::test_commit_while_waiting",
    "13 p2p_stale_pin": "cluster/test_leaving.py::test_p2p_stale_pin",
    "14 resource_kept": "cluster/test_leaving.py::test_resource_kept",
    "15 durations": "cluster/test_leaving.py::test_durations",
    "16 no orphan callback": "contracts/test_transitions.py::test_only_released_and_memory_become_forgotten",
}
"""Cases that failed with the naive rules, and where they are now."""


def names_in(file: str) -> set[str]:
    """Give the names of the tests in a file."""
    tree = ast.parse((HERE / file).read_text())
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("test", sorted({test for tests in RULES.values() for test in tests} | set(CASES.values())))
def test_exists(test: str) -> None:
    """The test is where the table says."""
    file, name = test.split("::")
    assert name.startswith("test_")
    assert name in names_in(file)


def test_none_is_left_out() -> None:
    """There is a row for each of the 17 rules and each of the 16 cases."""
    assert {str(n) for n in range(1, 18)} <= {rule.split()[0] for rule in RULES}
    assert {case.split()[0] for case in CASES} == {str(n) for n in range(1, 17)}
    assert all(RULES.values())
