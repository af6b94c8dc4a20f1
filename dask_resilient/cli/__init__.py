"""``dask resilience ls | verify | explain | gc | rm STORE | doctor``."""

from __future__ import annotations

import click

from dask_resilient.cli.doctor import doctor
from dask_resilient.cli.stores import explain, gc, ls, rm, verify


@click.group(name="resilience")
def resilience() -> None:
    """Look at a store of dask-resilient, verify it, collect its garbage; see what works on this machine.

    STORE is the path or file:// URL that was given to dask_resilient.install.
    """


for _command in (ls, verify, explain, gc, rm, doctor):
    resilience.add_command(_command)
