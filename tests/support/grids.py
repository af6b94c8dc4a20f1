"""A type of a user's, and the codec that this module registers for it when it is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import dask_resilient as dr
from dask_resilient.partitions.buffers import Packer, Unpacker, stage_bytes
from dask_resilient.partitions.parts import pack_array, unpack_array


@dataclass(eq=False)
class Grid:
    """Cells, and how far they are apart."""

    cells: Any
    spacing: float


class GridCodec:
    """Stages and restores grids."""

    name = "tests.Grid"

    def stage(self, grid):
        """Lay a grid out as bytes."""
        out = Packer()
        schema = {"cells": pack_array(grid.cells, out), "spacing": grid.spacing.hex()}
        return stage_bytes(self.name, schema, out.buffers)

    def restore(self, schema, payload):
        """Give a grid back."""
        data = Unpacker(payload)
        cells = unpack_array(schema["cells"], data)
        data.finish()
        return Grid(cells, float.fromhex(schema["spacing"]))


def make(i: int) -> Grid:
    """Make the i-th grid."""
    return Grid(np.full((3, 4), float(i)), i / 7)


dr.register_codec(GridCodec.name, GridCodec, [(Grid.__module__, Grid.__qualname__)])
