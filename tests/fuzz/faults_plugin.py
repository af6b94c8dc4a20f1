"""The table of faults, concluded: the plugin leaves, comes again, or comes twice; and the whole table."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from dask_resilient.plugin import NAME, Resilience
from tests.fuzz.faults import WORKERS, Fault, soon
from tests.fuzz.faults_clients import CLIENTS
from tests.fuzz.faults_exact import EXACT
from tests.fuzz.faults_store import STORE

if TYPE_CHECKING:
    from tests.fuzz.run import Run


async def uninstall(run: Run, rng: Random) -> bool:
    """It leaves, with loads under way."""
    plugin = run.x.scheduler.plugins.get(NAME)
    if not isinstance(plugin, Resilience):
        return False
    run.judge.left = True
    await plugin.uninstall(wait=rng.choice([0, 0.05]))
    return True


async def unregister(run: Run, rng: Random) -> bool:
    """Dask takes it out of its table, and tells nobody."""
    if NAME not in run.x.scheduler.plugins:
        return False
    run.judge.left = True
    await run.x.scheduler.unregister_scheduler_plugin(NAME)
    return True


async def register_twice(run: Run, rng: Random) -> bool:
    """Another client registers another instance: the first stays."""
    if NAME not in run.x.scheduler.plugins:
        return False
    await run.x.client.register_plugin(Resilience(run.x.store))
    return True


async def register_over(run: Run, rng: Random) -> bool:
    """Somebody insists on another instance."""
    if NAME not in run.x.scheduler.plugins:
        return False
    run.judge.left = True
    first = run.x.plugin
    await run.x.scheduler.register_scheduler_plugin(Resilience(run.x.store), idempotent=False)
    run.x.plugin = run.x.scheduler.plugins[NAME]
    await soon(lambda: first._watch is None and run.x.plugin._watch is not None, 2.0)
    run.judge.left = False
    return True


async def reinstall(run: Run, rng: Random) -> bool:
    """It comes again after it has left."""
    if NAME in run.x.scheduler.plugins:
        return False
    await run.x.client.register_plugin(Resilience(run.x.store))
    run.x.plugin = run.x.scheduler.plugins[NAME]
    run.judge.left = False
    return True


PLUGIN: dict[str, Fault] = {
    "uninstall": uninstall,
    "unregister": unregister,
    "register twice": register_twice,
    "register over": register_over,
    "reinstall": reinstall,
}

FAULTS: dict[str, Fault] = {**WORKERS, **CLIENTS, **STORE, **EXACT, **PLUGIN}
"""Every fault by its name."""
