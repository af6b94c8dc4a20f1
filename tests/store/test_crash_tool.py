"""The replay of power cuts finds what it is for: changes of the commit protocol that lose or tear something."""

from __future__ import annotations

import pytest

from dask_resilient.testing.crashes import KINDS, crashes
from dask_resilient.testing.recording import SYNCS
from tests.support.store_scenarios import Death, collected, overtaken, whole_life

PROMISE = ("acknowledge",)


def convicted(judge, log, start=0):
    """Tell the first broken promise among all power cuts of a log."""
    for crash in crashes(log, subsets=2, start=start):
        if faults := judge.faults(crash):
            return faults[0]
    return ""


def position(log, call, part, after=0):
    """Find the first step of a call on a path with some part."""
    return next(n for n in range(after, len(log)) if log[n][0] == call and part in str(log[n][1:]))


def files(log):
    """Give the path under which each file was made."""
    return {step[2]: step[1] for step in log if step[0] == "create"}


def test_every_kind_leaves_a_disk_of_its_own(live):
    """Where nothing is synced any more, each kind of power cut differs from the others."""
    life, _ = live(whole_life)
    log = life.recorder.log
    saved = position(log, *PROMISE, "saved")
    unsynced = log[:saved] + [step for step in log[saved:] if step[0] not in SYNCS]
    assert {crash.kind for crash in crashes(unsynced, subsets=1)} == {*KINDS, "random subset 0"}


def test_every_sync_is_needed_and_missed(live):
    """Without any one sync of a new store, a save or a revocation, some promise is broken in some power cut."""
    life, judge = live(whole_life)
    log = life.recorder.log
    made = files(log)
    tried = 0
    for n, step in enumerate(log):
        path = step[1] if step[0] == "fsync_directory" else made.get(step[1], "")
        # Names of others are waited for once more, which matters only where those others died: below.
        if step[0] not in SYNCS or ".probe-" in path or (path != "disk/store/data/m" and step in log[:n]):
            continue
        tried += 1
        assert convicted(judge, log[:n] + log[n + 1 :], n), step
    assert tried > 25


def move(log, what, to):
    """Move a slice of steps before another step."""
    begin, end = what
    moved = log[begin:end]
    rest = log[:begin] + log[end:]
    return rest[: to if to < begin else to - len(moved)] + moved + rest[to if to < begin else to - len(moved) :]


def receipt_before_data(log):
    """Commit first."""
    data = position(log, "mkdir", "data/m/0-a")
    commit = position(log, "mkdir", "commit/m")
    return move(log, (commit, position(log, *PROMISE, "saved")), data)


def link_before_content(log):
    """Give the receipt its name before its bytes are durable."""
    sync = position(log, "fdatasync", "", position(log, "create", "commit/m/.0.0"))
    return move(log, (sync, sync + 1), position(log, "unlink", "commit/m") + 1)


def rename_before_content(log):
    """Rename a draft that nobody waited for, as many programs do."""
    link = position(log, "link", "commit/m")
    renamed = [("rename", *log[link][1:])]
    return log[: link - 1] + renamed + log[link + 2 :]


def no_draft(log):
    """Write the receipt under its own name."""
    create = position(log, "create", "commit/m")
    link = position(log, "link", "commit/m")
    named = ("create", log[link][2], log[create][2])
    return [*log[:create], named, *log[create + 1 : link], *log[link + 2 :]]


def names_before_files(log):
    """Wait for the names of an attempt before it has any."""
    sync = position(log, "fsync_directory", "data/m/0-a")
    return move(log, (sync, sync + 1), position(log, "create", "data/m/0-a"))


def promise_too_early(log):
    """Return before the name of the receipt is durable."""
    promise = position(log, *PROMISE, "saved")
    return move(log, (promise, promise + 1), promise - 1)


def metadata_after_receipt(log):
    """Wait for the metadata last."""
    made = files(log)
    sync = next(n for n, step in enumerate(log) if step[0] == "fdatasync" and made[step[1]].endswith("0-a/zarr.json"))
    return move(log, (sync, sync + 1), position(log, *PROMISE, "saved"))


def description_after_receipt(log):
    """Describe the milestone when its first partition is saved."""
    begin = position(log, "create", "milestones/.m")
    return move(log, (begin, position(log, *PROMISE, "declared") + 1), position(log, *PROMISE, "saved") + 1)


def tombstone_after_successor(log):
    """Revoke when the next generation is saved."""
    begin = position(log, "mkdir", "revoked/m")
    end = position(log, *PROMISE, "revoked") + 1
    ready = [n for n, step in enumerate(log) if step[0] == "acknowledge"][-1]
    moved = move(log, (begin, end), ready + 1)
    return [step for step in moved if step != ("fsync_directory", "disk/store/revoked/m")] + [
        ("fsync_directory", "disk/store/revoked/m")
    ]


MUTATIONS = [
    receipt_before_data,
    link_before_content,
    rename_before_content,
    no_draft,
    names_before_files,
    promise_too_early,
    metadata_after_receipt,
    description_after_receipt,
    tombstone_after_successor,
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_wrong_order_is_found(live, mutation):
    """A protocol with its steps in another order breaks a promise in some power cut, the right one in none."""
    life, judge = live(whole_life)
    log = life.recorder.log
    changed = mutation(log)
    assert changed != log
    assert convicted(judge, changed)


def test_loser_that_removes_the_winner_is_found(live):
    """A writer that loses and takes away the wrong attempt is found without any power cut."""
    life, judge = live(overtaken)
    log = life.recorder.log
    wrong = [
        (call, *(str(what).replace("0-a", "0-winner") if call in {"unlink", "rmdir"} else what for what in rest))
        for call, *rest in log
    ]
    assert wrong != log
    assert "winner" in convicted(judge, wrong)


def test_collector_that_does_not_wait_is_found(live):
    """A collector that deletes data before their receipt is gone for good may bring a torn copy back."""
    life, judge = live(collected)
    log = life.recorder.log
    gone = position(log, "unlink", "commit/m/0.2.json")
    assert log[gone + 1] == ("fsync_directory", "disk/store/commit/m")
    assert convicted(judge, log[: gone + 1] + log[gone + 2 :], gone)


WAITS = [".", "disk", "disk/store", *(f"disk/store/{name}" for name in ("milestones", "data", "commit", "revoked/m"))]


@pytest.mark.parametrize("path", WAITS)
def test_waiting_for_the_names_of_others_is_needed(live, path):
    """A writer that trusts a name which a dead one made and did not wait for breaks a promise."""
    for at in range(200):
        death = Death(at, asks=True)
        life, judge = live(death)
        assert death.killed, "no death makes a difference"
        log = life.recorder.log
        waits = [n for n, step in enumerate(log) if n >= at and step == ("fsync_directory", path)]
        if waits and convicted(judge, log[: waits[0]] + log[waits[0] + 1 :], at):
            return
