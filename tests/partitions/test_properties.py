"""Every host codec on values that Hypothesis draws; many more of them with ``-m slow``."""

from __future__ import annotations

import numpy as np
import pytest

from dask_resilient.testing import sparse_strategies, strategies
from dask_resilient.testing.properties import CodecProperties

MANY = 10
"""How many times as many values the slow tests draw."""


class Properties(CodecProperties):
    many = False

    @pytest.mark.slow
    def test_many_values_come_back(self):
        """Whatever is drawn comes back exactly, with many more draws."""
        self.check_round_trips(MANY * self.examples)

    @pytest.mark.slow
    def test_much_damage_ends_as_it_must(self):
        """Damage never surprises, with many more draws."""
        self.many = True
        self.check_damage(MANY * self.examples)


class TestAnyArray(Properties):
    examples = 400

    def values(self):
        return strategies.arrays()


class TestAnyMaskedArray(Properties):
    examples = 300

    def values(self):
        return strategies.masked_arrays()

    def use(self, restored):
        if restored.size < 10**6:
            repr(restored)
            restored.filled()


class TestAnyScalar(Properties):
    examples = 800

    def values(self):
        return strategies.scalars()


class TestAnyStructure(Properties):
    examples = 300

    def values(self):
        return strategies.structures()


class TestAnyScipySparse(Properties):
    examples = 600

    def values(self):
        return sparse_strategies.scipy_arrays()

    def use(self, restored):
        """Run the compiled code over what was accepted."""
        if max(restored.shape) > 10**4 or np.prod(restored.shape, dtype=float) > 10**6:
            return
        restored.toarray()
        restored.copy().tocoo().sum_duplicates()
        if restored.ndim == 2:
            restored @ np.ones(restored.shape[1])
            restored.T @ restored
            restored.tocsc(), restored.tocsr()[:, ::-1]


class TestAnyPydataSparse(Properties):
    examples = 150

    def values(self):
        return sparse_strategies.pydata_arrays()

    def use(self, restored):
        """Run the compiled code over what was accepted, in the long run only: compiling it takes seconds."""
        if self.many and np.prod(restored.shape, dtype=float) < 10**6 and restored.dtype in (np.float64, np.int32):
            restored.todense()
            if restored.ndim:
                restored[..., 0].todense()
