"""Warm-up, changes by step, and warnings about a schedule that does not suit the length of the run."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.learning_rate import learning_rate_at, peak_learning_rate
from megaptm.config.schema import Config
from megaptm.objectives.composed import StepValue, objective_tasks, values_by_step
from megaptm.plugins import is_plugin

HIGH_FINAL_RATE = 0.5
"""Learning rate at the end of a run that gives a warning, as a share of the peak."""


def tasks_without_samples(config: Config) -> Iterator[str]:
    """Yield an error for each task of the objective that makes no sample in the run.

    A task that starts exactly at the end of the run is allowed, since a following phase may continue with it.
    """
    objective, steps = config.built_objective, config.train.steps
    for task in objective_tasks(objective):
        first = next((step for step, share in zip(task.share.steps, task.share.values, strict=True) if share), None)
        if first is None:
            yield f"objective.{task.label} has a share of 0 at every step: give it one above 0, or remove the task."
        elif first > steps:
            yield (
                f"objective.{task.label} starts at step {first:,}, and train.steps is {steps:,}: raise train.steps "
                "(train.stop_at ends a run sooner), start the task sooner, or remove it."
            )


def with_limited_warmup(config: Config) -> Config:
    """Return the config with `optimizer.warmup_steps` cut to `optimizer.max_warmup_ratio` of the run."""
    limit = _max_warmup(config)
    if limit is None or config.optimizer.warmup_steps <= limit:
        return config
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"warmup_steps": limit})})


def with_initial_warmup(config: Config, initial: Config) -> Config:
    """Return the config that continues a run, with the run's initial warm-up.

    `optimizer.max_warmup_ratio` limits the warm-up by the length of the run, which may change.
    """
    warmup = initial.optimizer.warmup_steps
    is_cut = any(some_config.optimizer.warmup_steps == _max_warmup(some_config) for some_config in (config, initial))
    if not is_cut or config.optimizer.max_warmup_ratio != initial.optimizer.max_warmup_ratio:
        return config
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"warmup_steps": warmup})})


def _max_warmup(config: Config) -> int | None:
    share = config.optimizer.max_warmup_ratio
    return None if share is None else max(1, int(share * _schedule_length(config)))


def _schedule_length(config: Config) -> int:
    """Return the length of the run in the unit of the optimizer's steps."""
    if config.optimizer.step_unit == "steps":
        return config.train.steps
    return config.batch_schedule.num_trained(config.train.steps) // config.train.batch


def config_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about settings of a config that are unlikely to be intended for a run of this length."""
    yield from _rate_warnings(config)
    yield from _stage_warnings(config)
    yield from _ramp_warnings(config)
    yield from _profile_warnings(config)


def _profile_warnings(config: Config) -> Iterator[str]:
    """Yield a warning if no process has a rank that `train.profile` names: a run may continue on fewer devices."""
    profile, processes = config.train.profile, config.layout.processes
    if profile is not None and (late := [rank for rank in profile.ranks if rank >= processes]):
        yield f"train.profile.ranks has {late[0]}, but the layout has {processes} processes: it writes no trace."


def _rate_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about the learning rate of a run."""
    optimizer, last = config.optimizer, config.train.steps - 1
    steps = _schedule_length(config)
    if optimizer.warmup_steps and optimizer.warmup_steps == _max_warmup(config):
        yield (
            f"the warm-up is limited to {optimizer.warmup_steps:,} of {steps:,} steps by optimizer.max_warmup_ratio "
            f"({optimizer.max_warmup_ratio:g}); set it to null to keep warmup_steps."
        )
    if optimizer.warmup_steps >= steps:
        yield (
            f"optimizer.warmup_steps ({optimizer.warmup_steps:,}) is not less than the length of the run (train.steps "
            f"{steps:,}): the rate never reaches its peak."
        )
    elif optimizer.stable_steps >= steps:
        yield (
            f"optimizer.stable_steps ({optimizer.stable_steps:,}) is not less than the length of the run (train.steps "
            f"{steps:,}): the rate never falls."
        )
    if late := [restart for restart in optimizer.restarts if restart >= config.train.steps]:
        yield (
            f"optimizer.restarts has step {late[0]:,}, which the run does not reach (train.steps {last + 1:,}): raise "
            "train.steps, or remove that step."
        )
    end = optimizer.decay_steps
    # Without an end, or with that of a phase, or with a rate that only the user knows.
    is_unknown = optimizer.decay in ("inverse", "halving") or is_plugin(optimizer.decay)
    if end is None or is_unknown or optimizer.restarts or config.phases:
        return
    # The first of two phases of a run ends before its decay; a rate that hardly decays is probably a mistake.
    if end > steps and (left := learning_rate_at(config, last) / peak_learning_rate(config)) > HIGH_FINAL_RATE:
        yield (
            f"optimizer.decay_steps ({end:,}) is far beyond train.steps ({steps:,}): the rate is still {left:.0%} of "
            "optimizer.lr at the end of the run; remove decay_steps to decay until the last step."
        )
    # A final phase at the minimum rate is common: GPT-3 decays over 260 of its 300 billion tokens (arXiv:2005.14165,
    # B).
    elif (optimizer.min_lr_ratio == 0.0 and end < steps) or end < steps // 2:
        rate = f"{optimizer.min_lr_ratio:.0%} of optimizer.lr" if optimizer.min_lr_ratio else "zero"
        yield (
            f"optimizer.decay_steps ({end:,}) is far below train.steps ({steps:,}): the last {steps - end:,} steps "
            f"have a rate of {rate}; raise decay_steps or optimizer.min_lr_ratio, or remove decay_steps."
        )


def _stage_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about changes of task shares and loss weights after the end of the run."""
    objective, steps = config.built_objective, config.train.steps
    for (kind, name), value in values_by_step(objective).items():
        later = _next_change(value, steps)
        if later is None:
            continue
        if kind == "share" and not any(share for _, share in value.changes_before(steps)):
            yield (
                f"objective.{name} starts at step {later:,}, the end of the run: only a following phase "
                f"(train.phase_start={later}) has samples of it."
            )
        else:
            subject = f"objective.{name}.share" if kind == "share" else f"objective: the weight of {name}"
            yield (
                f"{subject} changes at step {later:,}, which the run does not reach (train.steps {steps:,}): raise "
                "train.steps, let it change sooner, or remove that step."
            )


def _next_change(value: StepValue, steps: int) -> int | None:
    """Return the first step from `steps` on at which a value differs from that of the run's last step."""
    later = zip(value.steps, value.values, strict=True)
    return next((step for step, changed in later if step >= steps and changed != value.at(steps - 1)), None)


def _ramp_warnings(config: Config) -> Iterator[str]:
    """Yield a warning if the batch ramp has not reached its full size at the end of the run."""
    train, batches = config.train, config.batch_schedule
    if train.ramp is None or (last := batches.size(train.steps - 1)) == train.batch:
        return
    if train.ramp.steps:
        step = next(step for step in train.ramp.steps if step >= train.steps)
        why = f"train.ramp.steps has {train.ramp.steps[step]:,} from step {step:,} on"
    else:
        why = f"train.ramp.samples ({train.ramp.samples:,}) is more than the run reads"
    yield (
        f"the batch has {last:,} sequences at the end of the run (train.steps {train.steps:,}), not the "
        f"{train.batch:,} of train.batch: {why}; raise train.steps, or let the batch grow sooner."
    )
