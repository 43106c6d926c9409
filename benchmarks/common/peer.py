"""A usual training step around a Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def training_step(model: Any, precision: str, *, compiled: bool = False, **inputs: Any) -> Callable[[], float]:
    """Return a function that runs forward, backward, clipping and fused AdamW on fixed inputs, and returns the loss.

    `precision`: `fp32`, `bf16 autocast` (with fp32 weights), or `all bf16`. `compiled`: with torch.compile.
    """
    model.train()
    if precision == "all bf16":
        model.to(torch.bfloat16)
    device = next(model.parameters()).device.type
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16 autocast"):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step
