"""What a store has of a milestone that other runs know too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Shelf:
    """The partitions of one milestone, by the names of their receipts and tombstones.

    Learnt by a listing when the run meets the milestone, and kept up to date by what the run itself does. What others
    do meanwhile is found out by whoever reads or writes: a receipt that is gone or revoked is `Damaged`, and the first
    receipt of a generation wins.
    """

    milestone: str
    name: str
    npartitions: int
    valid: dict[str, int] = field(default_factory=dict)
    """Generation of the valid receipt, by index."""
    revoked: dict[str, int] = field(default_factory=dict)
    """Highest generation that has a tombstone, by index."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the partitions that this run has saved or loaded, by index; of others nobody has read the receipt."""
    made: dict[str, float] = field(default_factory=dict)
    """When this run stored a partition, by index; of those that others have stored nothing."""
    counted: bool = True
    """Whether reports count it: a loop tells of its snapshots itself."""
    found: int = 0
    """Partitions that were stored when the run met it."""

    @classmethod
    def of(
        cls,
        milestone: str,
        name: str,
        npartitions: int,
        valid: Mapping[str, int],
        tombstones: Mapping[str, Iterable[int]],
    ) -> Shelf:
        """Make one of what a listing found."""
        revoked = {index: max(generations) for index, generations in tombstones.items()}
        return cls(milestone, name, npartitions, dict(valid), revoked, found=len(valid))

    def generation(self, index: str) -> int:
        """Give the generation of the valid receipt, or the one that may be written next."""
        found = self.valid.get(index)
        return found if found is not None else self.revoked.get(index, -1) + 1

    def put(self, index: str, generation: int, nbytes: int, made: float | None = None) -> None:
        """Take in that a receipt is durable, and when this run stored it if it did."""
        self.valid[index] = generation
        self.sizes[index] = nbytes
        if made is not None:
            self.made[index] = made

    def since(self, time: float) -> list[str]:
        """Give the partitions that this run has stored since then, by index."""
        return [index for index, made in self.made.items() if made >= time]

    def drop(self, index: str) -> None:
        """Take in that a partition is taken away."""
        for known in (self.valid, self.sizes, self.made):
            known.pop(index, None)

    def take(self, index: str, generation: int) -> None:
        """Take in that a receipt was revoked."""
        self.drop(index)
        self.revoked[index] = max(generation, self.revoked.get(index, -1))
