"""Learning rate of a run continued with another number of steps: whether it jumps, and which keys resolve that."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from megaptm.config.check import config_errors
from megaptm.config.learning_rate import learning_rate_at, learning_rate_decay_end, peak_learning_rate
from megaptm.config.schema import Config

SCHEDULE_KEYS = ("train.steps", "optimizer.decay_steps", "optimizer.restarts")
"""Config keys of the learning rate schedule that may differ in the config that continues a run."""


@dataclass(frozen=True)
class RateJump:
    """Learning rate of the first step after a resume, in the old and the new config."""

    step: int
    """Number of steps done at the resume."""
    before: float
    after: float

    @property
    def size(self) -> str:
        """Return the ratio of the two learning rates as text, such as `5.5 times`; None if the old rate is zero."""
        return f" ({self.after / self.before:.3g} times)" if self.before else ""


@dataclass(frozen=True)
class ScheduleChoice:
    """Config key that determines the further learning rate of a longer run."""

    key: str
    value: Any
    effect: str

    @property
    def override(self) -> str:
        """Return the override of a config as typed: `optimizer.restarts=[200]`."""
        value = [*self.value] if isinstance(self.value, tuple) else self.value
        return f"{self.key}={value}".replace(" ", "")


def rate_jump(old: Config, new: Config, step: int) -> RateJump | None:
    """Return the learning rates of the old and the new config after `step` steps. None if they are equal, or if no step
    is left."""
    if step >= new.train.steps:
        return None
    before, after = learning_rate_at(old, step), learning_rate_at(new, step)
    return None if math.isclose(before, after, rel_tol=1e-9) else RateJump(step, before, after)


def schedule_choices(old: Config, new: Config, step: int) -> list[ScheduleChoice]:
    """Return the ways to continue the learning rate schedule after `step` steps with the length of `new`, the one
    without a jump first."""
    return [choice for choice in _list_choices(old, new, step) if not any(config_errors(_with_choice(new, choice)))]


def _list_choices(old: Config, new: Config, step: int) -> Iterator[ScheduleChoice]:
    steps, restarts = new.train.steps, old.optimizer.restarts
    new = _with_choice(new, ScheduleChoice("optimizer.restarts", restarts, "as before"))
    keep = ScheduleChoice("optimizer.decay_steps", learning_rate_decay_end(old, step), "fall as before")
    last = learning_rate_at(_with_choice(new, keep), steps - 1)
    if steps <= old.train.steps:
        yield keep
    elif last > 0.0:  # training at a rate of zero has no effect
        yield replace(keep, effect=f"decay as before, then stay at {last:.3g} until the end")
    to_the_end = ScheduleChoice("optimizer.decay_steps", None, "decay until the end")
    spread = replace(to_the_end, value=learning_rate_decay_end(_with_choice(new, to_the_end), step))
    first = learning_rate_at(_with_choice(new, spread), step)
    yield replace(spread, effect=f"spread the decay over all {steps:,} steps, continuing at {first:.3g}")
    past = [restart for restart in restarts if restart < step]
    effect = f"rise to {peak_learning_rate(new):.3g} and decay again in the remaining steps"
    yield ScheduleChoice("optimizer.restarts", (*past, step), effect)


def overrides_to_extend(config: Config, steps: int) -> list[str]:
    """Return the overrides that continue a finished run to `steps` steps, without a jump of its learning rate if
    possible."""
    overrides, longer = [f"train.steps={steps}"], _with_steps(config, steps)
    if rate_jump(config, longer, config.train.steps) is None:
        return overrides
    return [*overrides, schedule_choices(config, longer, config.train.steps)[0].override]


def _with_steps(config: Config, steps: int) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})


def _with_choice(config: Config, choice: ScheduleChoice) -> Config:
    update = {choice.key.removeprefix("optimizer."): choice.value}
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update=update)})
