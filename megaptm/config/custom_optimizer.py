"""Optimizers and schedules of the user, which a config names as `package.module:NAME`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from megaptm.config.schema import Config, OptimizerConfig
from megaptm.errors import UserError
from megaptm.plugins import load_plugin, plugin_error

STEP = "step"
"""Name in `state_tensors` of the number of updates that torch's optimizers count for each tensor."""
RESERVED = ("weight", "ema")
"""Names that checkpoints use for other tensors."""


@dataclass(frozen=True)
class CustomUpdateRule:
    """Update rule of the user."""

    build: Callable[..., Any]
    """Class or function that returns a `torch.optim.Optimizer`. Its argument is a list of groups without tensors."""
    state_tensors: Mapping[str, float]
    """Tensors in the state of each weight, with the values of their elements before the first step."""
    elementwise: bool
    """Whether each element is updated by itself, so that ranks may hold any part of a weight."""


@cache
def load_custom_rule(name: str) -> CustomUpdateRule:
    """Import an update rule of the user; raise `UserError` if it does not say what checkpoints have to contain."""
    kind = load_plugin(name, "optimizer.name", "class")
    state = getattr(kind, "state_tensors", None)
    if not callable(kind) or not isinstance(state, Mapping):
        raise UserError(
            f"optimizer.name ({name}) must be a class, or a function, with an attribute `state_tensors`: a dictionary "
            "of the tensors in its state, name -> value before the first step, which is empty if there are none."
        )
    for tensor, start in state.items():
        if not isinstance(tensor, str) or tensor in RESERVED or not isinstance(start, int | float):
            raise UserError(
                f"optimizer.name ({name}): `state_tensors` has {tensor!r}: {start!r}; it maps names to numbers, and "
                f"the names {' and '.join(RESERVED)} are taken."
            )
    return CustomUpdateRule(kind, dict(state), bool(getattr(kind, "elementwise", False)))


def build_custom_rule(settings: OptimizerConfig, groups: list[dict[str, Any]]) -> Any:
    """Build an update rule of the user for groups without tensors."""
    try:
        return load_custom_rule(settings.name).build(groups, lr=settings.lr, **settings.options)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise plugin_error(f"optimizer.name ({settings.name})", error) from error


def custom_step_error(settings: OptimizerConfig, error: BaseException) -> UserError:
    """Return the error of a run whose update rule, one of the user, raised an error in a step."""
    return plugin_error(f"optimizer.name ({settings.name}): step()", error)


def custom_rule_errors(config: Config) -> Iterator[str]:
    """Yield an error if the layout divides tensors that an update rule of the user needs as a whole.

    A rule that cannot be imported, or must not be, is reported at the start of the run.
    """
    name, layout = config.optimizer.name, config.layout
    if not config.optimizer.is_custom or not (layout.tensor > 1 or layout.divides_optimizer):
        return
    try:
        rule = load_custom_rule(name)
    except UserError:
        return
    if not rule.elementwise:
        yield (
            f"optimizer.name ({name}) gets parts of tensors with layout.tensor, distributed_optimizer or "
            "full_sharding: set `elementwise = True` on it if it updates each element by itself, or remove these keys."
        )


@cache
def _load_decay(name: str) -> Callable[[float, float, float], Any]:
    function: Callable[[float, float, float], Any] = load_plugin(name, "optimizer.decay", "function")
    return function


def custom_decay(name: str, step: float, begin: float, end: float) -> float:
    """Return the share of the peak rate by a schedule of the user: 1 at the peak, 0 at the minimum.

    As in other schedules, the step is limited to the decay, which has at least one step.
    """
    function, end = _load_decay(name), max(end, begin + 1)
    step = min(max(step, begin), end)
    try:
        share = float(function(step, begin, end))
    except (Exception, SystemExit) as error:
        raise plugin_error(f"optimizer.decay ({name})", error) from error
    if not (math.isfinite(share) and share >= 0.0):
        raise UserError(
            f"optimizer.decay ({name}) returns {share} at step {step:g}: it must be a number of at least 0."
        )
    return share
