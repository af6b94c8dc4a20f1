"""``dr.loop``: an iteration that goes on at its last complete snapshot.

Here is when a snapshot is taken, restored and dropped, and what becomes of a failure. What is saved is in
:mod:`dask_resilient.graph.loop_state`, what a loop is known by in :mod:`dask_resilient.graph.loop_code`, and where it
goes behind `protocols.Snapshots`.

A snapshot is taken when the body of a step has ended: when the iterator is asked for the next one. A step that is left
by ``break`` or by an exception has none, and what the body raises is never seen here.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, Literal

from dask_resilient import config
from dask_resilient.client.handle import newest_handle
from dask_resilient.client.snapshots import ClusterSnapshots
from dask_resilient.core.fingerprints import Fingerprint, combine
from dask_resilient.core.loops import AUTO, LoopPlan, due, prior_mttf, superseded
from dask_resilient.errors import LoadError, ResilienceWarning, StoreError
from dask_resilient.graph.loop_code import fingerprint_loop, for_of
from dask_resilient.graph.loop_state import State, copied, pack, unpack
from dask_resilient.graph.milestone import check_name
from dask_resilient.protocols import Snapshots

__all__ = ["Loop", "Steps", "loop"]

logger = logging.getLogger("dask_resilient")


UNPROTECTED = (
    "runs unprotected: no plugin was installed from here with a client that is not asynchronous; "
    "call dask_resilient.install(client) first"
)


def find_snapshots() -> Snapshots | None:
    """Give where the snapshots of this process go, None if nowhere."""
    handle = newest_handle()
    return None if handle is None else ClusterSnapshots(handle)


def loop(
    name: str,
    steps: int,
    *,
    every: int | Literal["auto"] = AUTO,
    mttf: float | str | None = None,
    version: str | int | None = None,
    last: int = 2,
    nth: int | None = None,
) -> Loop:
    """Make a loop whose state is kept, so that a later run goes on where this one was interrupted.

    Calling the loop with the fields of its first state gives pairs of a step, from 0 on, and the state. The body of a
    ``for`` reads its fields and sets them::

        for step, state in loop(centroids=c0, rng=rng):
            state.centroids = update(x, state.centroids, state.rng)

    A later run goes on if name, version, first state, the body, and all that the body reads are what they were; else it
    begins at step 0 and says why. What follows the loop may change freely. A loop that is done gives no steps; in all
    cases the last state is in ``loop.state``.

    Keep all that a step hands to the next in the state: what it changes in place elsewhere, such as a list of losses
    or an attribute of an object, is not there any more when another run goes on.

    Parameters
    ----------
    name
        At most 100 letters, digits, ``_``, ``-`` and ``.``.
    steps
        How many steps there are; another number is the same loop.
    every
        Take a snapshot after each so many steps, or ``"auto"``: after the first step, then whenever it pays, by what it
        costs and how often something fails (Daly's interval). After the last step one is always taken.
    mttf
        Mean time between two failures, for ``"auto"``: seconds, or a text such as ``"24h"``. None takes 50,000 hours
        for each device.
    version
        Part of what the loop is known by, and your word for what cannot be pinned down.
    last
        How many of the newest snapshots are kept.
    nth
        Keep also the first snapshot of each so many steps.

    Returns
    -------
    Loop

    Raises
    ------
    SettingError
        If an argument cannot work.
    """
    seconds = config.seconds("mttf", mttf) if isinstance(mttf, str) else mttf
    return Loop(check_name(name, "loop"), LoopPlan(steps, every, seconds, version, last, nth))


class Loop:
    """A loop that resumes; made by `loop`.

    Attributes
    ----------
    state
        The state of the last call, also when it is over; None before.
    """

    def __init__(self, name: str, plan: LoopPlan, *, clock: Callable[[], float] = perf_counter) -> None:
        self.name = name
        self.plan = plan
        self.state: State | None = None
        self.clock = clock

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return self.plan.steps

    def __repr__(self) -> str:
        """Say which loop it is."""
        return f"<dask_resilient.Loop {self.name!r} of {self.steps} steps>"

    def __iter__(self) -> Iterator[Any]:
        """Refuse: the fields of the first state are missing."""
        raise TypeError(
            f"loop {self.name!r} is iterated by calling it with the fields of its first state: "
            "for step, state in loop(x=..., rng=...)"
        )

    def __call__(self, /, **fields: Any) -> Steps:
        """Give an iterator of steps and states.

        Parameters
        ----------
        **fields
            The first state, of which the loop takes a copy: arrays of NumPy or CuPy, tables of pandas or cuDF, numbers,
            text, None, lists, tuples and dicts of such, generators of random numbers, and Dask collections.

        Raises
        ------
        UnsupportedType
            If a field cannot be kept; the message names it and says why.
        """
        self.state = copied(State(fields))
        return Steps(self, self.state)


class Steps:
    """The steps of one call of a loop."""

    def __init__(self, loop: Loop, state: State) -> None:
        self._loop, self._plan, self._state = loop, loop.plan, state
        self._snapshots: Snapshots | None = None
        self._for: tuple[CodeType, int] | None = None
        """Where a ``for`` of its own is, if it is run by one."""
        self._begun = False
        self._step = -1
        """The last one that was given, or restored."""
        self._is_under_way = False
        self._complete: list[int] = []
        self._cost: float | None = None
        self._since = loop.clock()

    def __iter__(self) -> Steps:
        """Give the iterator itself."""
        frame = sys._getframe(1)
        head = _attempt(lambda: for_of(frame))
        self._for = (frame.f_code, head) if isinstance(head, int) else None
        if self._is_under_way and self._snapshots is not None:
            self._snapshots = None
            warnings.warn(
                f"loop {self._loop.name!r} goes on after step {self._step} was left before its end, so no more "
                "snapshots are taken; call the loop again to go on at the last one",
                ResilienceWarning,
                stacklevel=2,
            )
        return self

    def __next__(self) -> tuple[int, State]:
        """End the step that is under way, and give the next."""
        if not self._begun:
            self._begun = True
            texts = self._begin(sys._getframe(1))
        else:
            texts = self._end()
        for text in texts:
            warnings.warn(f"loop {self._loop.name!r} {text}", ResilienceWarning, stacklevel=2)
        if self._step + 1 >= self._plan.steps:
            raise StopIteration
        self._step += 1
        self._is_under_way = True
        return self._step, self._state

    # -- the begin ---------------------------------------------------------------------------------------------------

    def _begin(self, frame: FrameType) -> list[str]:
        """Find where to begin, and give what the user should know."""
        enabled = config.read().enabled
        found = find_snapshots() if enabled else None
        if found is None:
            return [UNPROTECTED] if enabled else []
        head = self._for[1] if self._for == (frame.f_code, frame.f_lasti) else None
        lineage = _attempt(lambda: fingerprint_loop(frame, head, vars(self._state)))
        if not isinstance(lineage, Fingerprint):
            lineage = Fingerprint("", {}, (f"its code cannot be read ({lineage!r})",))
        version, name = self._plan.version, self._loop.name
        reasons = lineage.reasons if version is None else ()
        identity = combine(["loop", name, repr(version), lineage.digest])
        try:
            complete = found.open(name, identity, lineage, reasons, self._plan.steps)
        except StoreError as e:
            return [f"runs unprotected: {e}"]
        self._snapshots = found
        self._since = self._loop.clock()
        if not reasons:
            return self._resume(found, [step for step in complete if step < self._plan.steps])
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return [f"cannot be resumed by a later run, since {reasons[0]}{more}; change that, or give version="]

    def _resume(self, snapshots: Snapshots, complete: list[int]) -> list[str]:
        """Go on at the newest snapshot that can be restored."""
        failed = ""
        self._complete = sorted(complete)
        while self._complete:
            step = self._complete[-1]
            try:
                self._state = self._loop.state = unpack(snapshots.restore(step))
            except LoadError as e:
                failed = failed or f"could not restore its snapshot after step {step} ({e})"
                self._complete.pop()
                continue
            self._step = step
            logger.info("dask-resilient: loop %r goes on after step %d", self._loop.name, step)
            break
        if not failed:
            return []
        return [f"{failed} and {f'goes on after step {self._step}' if self._complete else 'begins at step 0'}"]

    # -- the end of a step -------------------------------------------------------------------------------------------

    def _end(self) -> list[str]:
        """Take a snapshot if one is due, and give what the user should know."""
        ended, self._is_under_way = self._is_under_way, False
        if not ended or self._snapshots is None:
            return []
        begin = self._loop.clock()
        mttf = prior_mttf(self._snapshots.devices)
        if not due(self._plan, self._step, begin - self._since, self._cost, mttf):
            return []
        plain, collections = pack(self._state)
        try:
            kept = self._snapshots.save(self._step, plain, collections)
        except StoreError as e:
            self._snapshots = None
            return [f"goes on unprotected: the snapshot after step {self._step} could not be saved ({e})"]
        for name, collection in kept.items():
            setattr(self._state, name, collection)
        self._complete.append(self._step)
        self._drop(self._snapshots)
        self._since = self._loop.clock()
        self._cost = self._since - begin
        return []

    def _drop(self, snapshots: Snapshots) -> None:
        gone = superseded(self._complete, self._plan.last, self._plan.nth)
        if not gone:
            return
        try:
            snapshots.drop(gone)
        except StoreError as e:
            logger.warning("dask-resilient: old snapshots of loop %r could not be dropped: %s", self._loop.name, e)
            return
        self._complete = [step for step in self._complete if step not in gone]


def _attempt(do: Callable[[], Any]) -> Any:
    """Give a result, or what was raised: a loop whose code nobody can read runs all the same."""
    try:
        return do()
    except Exception as e:
        logger.debug("dask-resilient: the code of a loop cannot be read", exc_info=True)
        return e
