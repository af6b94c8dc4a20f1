"""Three operations that move data over the workers' network: shuffle, merge and rechunk, and what each must give."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

from tests.processes.preload import pass_gate
from tests.support.calls import Calls

ROWS = 200
META = pd.DataFrame({"k": np.array([], dtype=int), "v": np.array([], dtype=int)})


def part(i: int, seed: int) -> pd.DataFrame:
    """Give one partition of a frame."""
    rng = np.random.default_rng([seed, i])
    return pd.DataFrame({"k": rng.integers(0, 60, ROWS), "v": rng.integers(0, 1000, ROWS)})


def read(i: int, where: str, seed: int = 0, seconds: float = 0.0) -> pd.DataFrame:
    """Be the user's reader of one partition: counted, and held while its gate exists."""
    Calls(f"{where}/calls").add(f"read{seed}-{i}")
    pass_gate(Path(where, "gates", "read"))
    pass_gate(Path(where, "gates", f"read-{i}"))
    time.sleep(seconds)
    return part(i, seed)


def block(where: str, block_id: Any = None) -> Any:
    """Be the user's reader of one block of an array."""
    i = block_id[0]
    Calls(f"{where}/calls").add(f"read0-{i}")
    pass_gate(Path(where, "gates", "read"))
    pass_gate(Path(where, "gates", f"read-{i}"))
    return np.arange(12 * 10, dtype=float).reshape(12, 10) + 1000 * i


def follow(value: Any, where: str) -> Any:
    """Be the user's function on one output."""
    Calls(f"{where}/calls").add("follow")
    pass_gate(Path(where, "gates", "follow"))
    return value


def frame(where: Path, n: int, seed: int = 0, seconds: float = 0.0) -> Any:
    """Give a frame of so many partitions."""
    return dd.from_map(read, range(n), where=str(where), seed=seed, seconds=seconds, meta=META)


class Shuffle:
    """`DataFrame.shuffle`."""

    def __init__(self, where: Path, n: int) -> None:
        self.where, self.n = where, n

    def make(self) -> Any:
        """Give the lazy output."""
        with dask.config.set({"dataframe.shuffle.method": "p2p"}):
            return frame(self.where, self.n).shuffle("k", npartitions=self.n)

    def consume(self, output: Any) -> Any:
        """Give what a user's function makes of each output."""
        return output.map_partitions(follow, str(self.where), meta=output._meta)

    def right(self, parts: list[Any]) -> None:
        """Check that every row is there once, and the rows of one key in one partition."""
        self.same(parts, pd.concat([part(i, 0) for i in range(self.n)]))

    @staticmethod
    def same(parts: list[Any], expected: Any) -> None:
        columns = list(expected.columns)
        got = pd.concat(parts).sort_values(columns, ignore_index=True)
        pd.testing.assert_frame_equal(got, expected.sort_values(columns, ignore_index=True))
        keys = [set(part["k"]) for part in parts]
        assert sum(map(len, keys)) == len(set().union(*keys))


class Merge(Shuffle):
    """A hash join of two frames."""

    def make(self) -> Any:
        """Give the lazy output."""
        left = frame(self.where, self.n)
        right = frame(self.where, self.n, seed=1)
        with dask.config.set({"dataframe.shuffle.method": "p2p"}):
            return left.merge(right, on="k", npartitions=self.n, broadcast=False)

    def right(self, parts: list[Any]) -> None:
        """Check against pandas."""
        left, right = (pd.concat([part(i, seed) for i in range(self.n)]) for seed in (0, 1))
        self.same(parts, left.merge(right, on="k"))


class Rechunk:
    """`Array.rechunk` from rows to columns."""

    def __init__(self, where: Path, n: int) -> None:
        self.where, self.n = where, n

    def make(self) -> Any:
        """Give the lazy output."""
        chunks = ((12,) * self.n, (10,))
        x = da.map_blocks(block, str(self.where), chunks=chunks, dtype=float, meta=np.empty((0, 0)))
        with dask.config.set({"array.chunk-size": "1 kiB"}):  # else the small blocks are joined before they are sent
            return x.rechunk((12 * self.n, 1), method="p2p")

    def consume(self, output: Any) -> Any:
        """Give what a user's function makes of each output."""
        return output.map_blocks(follow, str(self.where), dtype=float, meta=np.empty((0, 0)))

    def right(self, parts: list[Any]) -> None:
        """Check against NumPy."""
        expected = [block(str(self.where), block_id=(i, 0)) for i in range(self.n)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), np.concatenate(expected))
