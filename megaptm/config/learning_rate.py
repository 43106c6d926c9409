"""Learning rate as a function of the step, and of what was read before it."""

from __future__ import annotations

import math

from megaptm.config import Config, OptimizerConfig


def rate_of(config: Config, step: int) -> float:
    """The rate of step `step` (0, 1, ...) of a run.

    Time is what was read, in whole batches: where the batch ramps, a step of a tenth of its rows is a tenth of a step.
    """
    batches, whole = config.batches, config.train.batch
    return learning_rate(
        batches.first(step) / whole,
        config.optimizer,
        steps=batches.first(config.train.steps) / whole,
        size=batches.size(step) / whole,
    )


def learning_rate(step: float, optimizer: OptimizerConfig, *, steps: float, size: float = 1.0) -> float:
    """The rate of the step after `step` others: a linear warm-up to the peak, then the decay, never below `final`.

    `size`: this step's share of a whole one. `cosine` and `linear` reach the end at `decay_steps` (all of `steps` when
    absent) and stay there; `rsqrt` is peak x sqrt(warmup / step), T5's and the Transformer's; `constant` stays.
    """
    peak, warmup = optimizer.lr, optimizer.warmup_steps
    if step < warmup:
        return peak * min(1.0, (step + size) / warmup)
    if optimizer.decay == "constant":
        return peak
    if optimizer.decay == "rsqrt":
        return peak * max(optimizer.final, math.sqrt(max(warmup, 1) / (step + size)))
    end = optimizer.decay_steps if optimizer.decay_steps is not None else steps
    done = min(1.0, (step - warmup) / max(1, end - warmup))
    shape = 0.5 * (1.0 + math.cos(math.pi * done)) if optimizer.decay == "cosine" else 1.0 - done
    return peak * (optimizer.final + (1.0 - optimizer.final) * shape)
