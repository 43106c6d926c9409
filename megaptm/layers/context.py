"""Context parallelism in layers: ranks that divide each sequence, and attend to the keys and values of all of it."""

# S sequence, L positions of a rank, B batch, G heads of keys, K head width

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from megaptm.layers.split import identity


@dataclass(frozen=True)
class ContextRanks:
    """Context ranks that divide sequences. The default is a single rank.

    Of C ranks and 2 C chunks of a sequence, rank c holds chunks c and 2 C - 1 - c: with causal attention all ranks then
    compute equally many pairs (arXiv:2407.21783, 3.3.2).
    """

    rank: int = 0
    size: int = 1
    gather_parts: Callable[[Tensor], Tensor] = identity
    """Hook that concatenates the parts of all ranks along the first axis, with a gradient."""

    def chunks(self, length: int) -> tuple[range, range]:
        """Return the positions of this rank in sequences of this length."""
        chunk = length // (2 * self.size)
        first, second = self.rank * chunk, (2 * self.size - 1 - self.rank) * chunk
        return range(first, first + chunk), range(second, second + chunk)

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Return the positions of this rank, int64 [L]; cached on the device."""
        return _positions(self.chunks(length), device, detect_fake_mode())

    def own_part(self, x: Tensor, axis: int) -> Tensor:
        """Return the part of this rank of a tensor with complete sequences along an axis."""
        chunks = self.chunks(x.shape[axis])
        return torch.cat([x.narrow(axis, chunk.start, len(chunk)) for chunk in chunks], axis)

    def gather(self, *parts_LBGK: Tensor) -> tuple[Tensor, ...]:
        """Return tensors of complete sequences [S, B, G, K] from the parts of all ranks, by one collective."""
        gathered = self.gather_parts(torch.stack(parts_LBGK, 1)).unflatten(0, (self.size, 2, -1))
        # The second chunks of the ranks are in descending order.
        return torch.cat([gathered[:, 0].flatten(0, 1), gathered[:, 1].flip(0).flatten(0, 1)]).unbind(1)


@lru_cache(maxsize=256)
def _positions(chunks: tuple[range, range], device: torch.device, mode: object) -> Tensor:
    return torch.cat([torch.arange(chunk.start, chunk.stop) for chunk in chunks]).to(device)


ALONE = ContextRanks()


class UsesContextRanks:
    """Mixin of modules that need to know which part of a sequence they get."""

    context = ALONE
