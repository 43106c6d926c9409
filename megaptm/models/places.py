"""The places of rows that heads read."""

# S sequence, B batch, D width, K places of a row

from __future__ import annotations

from torch import Tensor


def asked_places(x_SBD: Tensor, batch: dict[str, Tensor], answers: str) -> Tensor:
    """[B, K, D]: the first of those that are hidden, as many as the field has answers; or all places where the batch
    does not say which are."""
    x_BSD = x_SBD.transpose(0, 1)
    if "masked_positions" not in batch:
        return x_BSD
    asked_BK = batch["masked_positions"]
    # Where tasks hide different numbers of places, the field has room for the most.
    return at_places(x_BSD, asked_BK[:, : batch[answers].shape[1]] if answers in batch else asked_BK)


def at_places(x_BSD: Tensor, places_BK: Tensor) -> Tensor:
    """[B, K, D]"""
    return x_BSD.gather(1, places_BK[:, :, None].expand(-1, -1, x_BSD.shape[-1]))
