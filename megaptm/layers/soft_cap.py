"""Soft cap of attention scores and logits (Gemma 2, arXiv:2408.00118)."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_cap(scores: Tensor, cap: float | None) -> Tensor:
    """Return scores limited to (-cap, cap) by a tanh; unchanged if the cap is None."""
    return scores if cap is None else cap * torch.tanh(scores / cap)
