"""Learning rate as a function of the step."""

from __future__ import annotations

import math

from megaptm.config import Optimizer


def learning_rate(step: int, optimizer: Optimizer, *, steps: int) -> float:
    """The rate of step `step` (0, 1, ...): a linear warm-up to the peak, then the decay, never below `final` x peak.

    `cosine` and `linear` reach the end at `decay_steps` (all of `steps` when absent) and stay there; `rsqrt` is
    peak x sqrt(warmup / step), T5's and the Transformer's; `constant` stays.
    """
    peak, warmup = optimizer.lr, optimizer.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if optimizer.decay == "constant":
        return peak
    if optimizer.decay == "rsqrt":
        return peak * max(optimizer.final, math.sqrt(max(warmup, 1) / (step + 1)))
    end = optimizer.decay_steps if optimizer.decay_steps is not None else steps
    done = min(1.0, (step - warmup) / max(1, end - warmup))
    shape = 0.5 * (1.0 + math.cos(math.pi * done)) if optimizer.decay == "cosine" else 1.0 - done
    return peak * (optimizer.final + (1.0 - optimizer.final) * shape)
