"""Learning rate as a function of the step and of the number of samples before it."""

from __future__ import annotations

import math

from megaptm.config.custom_optimizer import custom_decay
from megaptm.config.model import resolve_model
from megaptm.config.schema import Config, OptimizerConfig
from megaptm.plugins import is_plugin


def learning_rate_at(config: Config, step: int, *, rose: int | None = None) -> float:
    """Return the learning rate of step `step` (0, 1, ...) of a run.

    `rose`: number of steps after which a validation loss first exceeded the one before it, used by `halving`.

    By default time is counted in full batches: with a batch ramp, a step with a tenth of the samples counts as a tenth.
    With `optimizer.step_unit` of steps, each step counts as one.
    """
    if config.optimizer.step_unit == "steps":
        return learning_rate(step, config.optimizer, steps=config.train.steps, width=_noam_width(config), rose=rose)
    batches, full_batch = config.batch_schedule, config.train.batch
    return learning_rate(
        batches.num_trained(step) / full_batch,
        config.optimizer,
        steps=batches.num_trained(config.train.steps) / full_batch,
        restarts=schedule_restarts(config),
        size=batches.size(step) / full_batch,
        width=_noam_width(config),
        rose=None if rose is None else batches.num_trained(rose) / full_batch,
    )


def learning_rate_decay_end(config: Config, step: int) -> int:
    """Return the `optimizer.decay_steps` that continues the present decay of the learning rate at `step`, whatever
    `train.steps` becomes."""
    if config.optimizer.decay_steps is not None:
        return config.optimizer.decay_steps
    position, steps = (float(step), float(config.train.steps))
    if config.optimizer.step_unit == "batches":
        position, steps = (
            config.batch_schedule.num_trained(count) / config.train.batch for count in (step, config.train.steps)
        )
    return round(_position_in_cycle(position, steps, schedule_restarts(config))[1])


def schedule_restarts(config: Config) -> tuple[float, ...]:
    """Return the restarts of the learning rate schedule in its unit of time. In the config they are steps of the run,
    like stages of an objective."""
    restarts = config.optimizer.restarts
    if config.optimizer.step_unit == "steps":
        return restarts
    return tuple(config.batch_schedule.num_trained(restart) / config.train.batch for restart in restarts)


def peak_learning_rate(config: Config) -> float:
    """Return the maximum learning rate of a run."""
    return _peak_rate(config.optimizer, _noam_width(config))


def learning_rate(
    step: float,
    optimizer: OptimizerConfig,
    *,
    steps: float,
    restarts: tuple[float, ...] | None = None,
    size: float = 1.0,
    width: int | None = None,
    rose: float | None = None,
) -> float:
    """Return the learning rate after `step` steps: a rise to the peak, an optional constant phase, then the
    decay.

    - `restarts`: steps at which the schedule starts again; default: the optimizer's.
    - `size`: length of this step as a share of a full step.
    - `width`: width of the model, used by `noam`.
    - `rose`: time at which the validation loss rose, used by `halving`.

    A decay with an end reaches it at `decay_steps` (by default all of `steps`) and stays there.
    """
    step, steps = _position_in_cycle(step, steps, optimizer.restarts if restarts is None else restarts)
    peak, final, warmup = _peak_rate(optimizer, width), optimizer.min_lr_ratio, optimizer.warmup_steps
    if step < warmup:
        done = min(1.0, (step + size) / warmup)
        if optimizer.warmup_shape == "exponential":
            return peak * final ** (1.0 - done)
        foot = final if optimizer.decay == "triangular" else 0.0
        return peak * (foot + (1.0 - foot) * done)
    begin = max(warmup, optimizer.stable_steps)
    if optimizer.decay == "constant" or step + size <= begin:
        return peak
    if optimizer.decay in ("rsqrt", "noam"):
        return peak * max(final, math.sqrt(max(begin, 1) / (step + size)))
    if optimizer.decay == "inverse":
        assert optimizer.decay_steps is not None
        return peak * max(final, 1.0 / (1.0 + (step - begin) / optimizer.decay_steps))
    if optimizer.decay == "halving":
        assert optimizer.decay_steps is not None
        return peak if rose is None else peak * max(final, 0.5 ** (1 + (step - rose) // optimizer.decay_steps))
    end = optimizer.decay_steps if optimizer.decay_steps is not None else steps
    if is_plugin(optimizer.decay):
        return peak * (final + (1.0 - final) * custom_decay(optimizer.decay, step, begin, end))
    done = min(1.0, max(0.0, step - begin) / max(1, end - begin))
    return peak * (final + (1.0 - final) * _decay_share(optimizer, done))


def _decay_share(optimizer: OptimizerConfig, done: float) -> float:
    """Return the learning rate of a decay with an end as a share between its minimum and its peak. `done`: share of the
    decay's steps that are done."""
    if optimizer.decay == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    if optimizer.decay == "1-sqrt":
        return 1.0 - math.sqrt(done)
    return (1.0 - done) ** (1.0 if optimizer.power is None else optimizer.power)


def _position_in_cycle(step: float, steps: float, restarts: tuple[float, ...]) -> tuple[float, float]:
    """Return the number of steps since the last restart of the learning rate, and from there to the next one or the
    end."""
    last_restart = max((restart for restart in restarts if restart <= step), default=0)
    next_restart = min((restart for restart in restarts if restart > step), default=steps)
    return step - last_restart, min(next_restart, steps) - last_restart


def _peak_rate(optimizer: OptimizerConfig, width: int | None) -> float:
    if optimizer.decay != "noam":
        return optimizer.lr
    assert width is not None
    return optimizer.lr / math.sqrt(width * max(optimizer.warmup_steps, 1))


def _noam_width(config: Config) -> int | None:
    if config.optimizer.decay != "noam":
        return None
    # muP itself scales the rate of its base width.
    return config.model.mup_base_width or resolve_model(config).width
