"""Hidden states at the positions that heads read."""

# S sequence, B batch, D width, K positions of a sample

from __future__ import annotations

from torch import Tensor


def target_states(x_SBD: Tensor, batch: dict[str, Tensor], label_field: str) -> Tensor:
    """Return the hidden states that a head reads, [B, K, D]: at the target positions, as many as the field has labels;
    at all positions if the batch has no target positions."""
    x_BSD = x_SBD.transpose(0, 1)
    if "masked_positions" not in batch:
        return x_BSD
    positions_BK = batch["masked_positions"]
    # The batch has room for the task with the largest number of target positions.
    return states_at(x_BSD, positions_BK[:, : batch[label_field].shape[1]] if label_field in batch else positions_BK)


def states_at(x_BSD: Tensor, positions_BK: Tensor) -> Tensor:
    """Return the hidden states that a head reads, at given positions, [B, K, D]."""
    return x_BSD.gather(1, positions_BK[:, :, None].expand(-1, -1, x_BSD.shape[-1]))
