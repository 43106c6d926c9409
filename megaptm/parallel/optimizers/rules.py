"""Update rules of optimizers by name: construction and state tensors of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from megaptm.config import OptimizerConfig
from megaptm.config.custom_optimizer import STEP, build_custom_rule, custom_step_error, load_custom_rule
from megaptm.errors import UserError
from megaptm.parallel.optimizers.adafactor import Adafactor, is_factored
from megaptm.parallel.optimizers.lamb import Lamb
from megaptm.parallel.optimizers.muon import Muon
from megaptm.parallel.optimizers.offloaded_adamw import OffloadedAdamW
from megaptm.parallel.optimizers.part import TensorPart
from megaptm.parallel.optimizers.stable_adamw import StableAdamW

Groups = list[dict[str, Any]]
Parts = Sequence[TensorPart]


@dataclass(frozen=True)
class StateTensor:
    """State tensor of an optimizer's update rule for a weight, under its name in the rule's `state` and in
    checkpoints."""

    like: Literal["weight", "rows", "columns"] = "weight"
    """Shape of an optimizer's state tensor:
    - `weight`: one value per element
    - `rows`, `columns`: one value per row, or per column of each matrix; replicated on data ranks
    """
    start: float | None = 0.0
    """Value of an optimizer's state tensor before the first step; None: that of the weight."""


@dataclass(frozen=True)
class UpdateRule:
    """Update rule of an optimizer."""

    build: Callable[[Groups, OptimizerConfig, Parts, bool], torch.optim.Optimizer] | None
    """Function that builds the update rule; None: megatron-core builds it. Arguments: groups without tensors, the
    settings, this rank's parts of all trained tensors, and whether they are sharded over data ranks."""
    state_tensors: Callable[[OptimizerConfig, TensorPart], Mapping[str, StateTensor]]
    """Function from a weight to the optimizer's state tensors for it, whichever rank holds them."""


def build_offloaded(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    """Build AdamW with moments in host memory."""
    return OffloadedAdamW(groups, betas=settings.betas, eps=settings.eps)


def _build_sgd(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=True)


def _build_adagrad(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    rule = torch.optim.Adagrad(groups, lr=settings.lr, eps=settings.eps)
    for part in parts:
        if part.master is not None:
            start = torch.full_like(part.master, settings.initial_accumulator)
            rule.state[part.master] = {"step": torch.tensor(0.0), "sum": start}
    return rule


def _build_lamb(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    return Lamb(
        groups,
        parts,
        divided=divided,
        betas=settings.betas,
        eps=settings.eps,
        bias_correction=settings.bias_correction,
    )


def _stable_adamw(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    return StableAdamW(groups, parts, divided=divided, betas=settings.betas, eps=settings.eps)


def _build_adafactor(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    own = settings.adafactor.model_dump()
    return Adafactor(groups, parts, divided=divided, momentum=settings.momentum, **own)


def _build_muon(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    return Muon(groups, parts, betas=settings.betas, eps=settings.eps, **settings.muon.model_dump())


def _moment_tensors(settings: OptimizerConfig, part: TensorPart) -> Mapping[str, StateTensor]:
    return {"exp_avg": StateTensor(), "exp_avg_sq": StateTensor()}


def _factored_tensors(settings: OptimizerConfig, part: TensorPart) -> Mapping[str, StateTensor]:
    mean = {"exp_avg": StateTensor()} if settings.momentum else {}
    if is_factored(part, settings.adafactor.min_dim_size_to_factor):
        return mean | {"exp_avg_sq_row": StateTensor("rows"), "exp_avg_sq_col": StateTensor("columns")}
    return mean | {"exp_avg_sq": StateTensor()}


def _muon_tensors(settings: OptimizerConfig, part: TensorPart) -> Mapping[str, StateTensor]:
    return {"momentum_buffer": StateTensor()} if part.placement.in_layer else _moment_tensors(settings, part)


UPDATE_RULES: dict[str, UpdateRule] = {
    "adamw": UpdateRule(None, _moment_tensors),
    "stable-adamw": UpdateRule(_stable_adamw, _moment_tensors),
    "sgd": UpdateRule(
        _build_sgd, lambda settings, part: {"momentum_buffer": StateTensor()} if settings.momentum else {}
    ),
    "adagrad": UpdateRule(
        _build_adagrad, lambda settings, part: {"sum": StateTensor(start=settings.initial_accumulator)}
    ),
    "lamb": UpdateRule(_build_lamb, _moment_tensors),
    "adafactor": UpdateRule(_build_adafactor, _factored_tensors),
    "muon": UpdateRule(_build_muon, _muon_tensors),
}


def find_rule(settings: OptimizerConfig) -> UpdateRule:
    """Return the update rule of the settings, which may be one of the user."""
    if not settings.is_custom:
        return UPDATE_RULES[settings.name]
    own = load_custom_rule(settings.name).state_tensors
    tensors = {kind: StateTensor(start=start) for kind, start in own.items() if kind != STEP}
    return UpdateRule(_build_custom, lambda settings, part: tensors)


def _build_custom(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    rule = build_custom_rule(settings, groups)
    if not isinstance(rule, torch.optim.Optimizer) or len(rule.param_groups) != len(groups):
        raise UserError(
            f"optimizer.name ({settings.name}) must return a torch.optim.Optimizer with the {len(groups)} groups that "
            "it is given: correct it."
        )
    rule.step = _naming_errors(rule.step, settings)  # type: ignore[method-assign, assignment]
    return rule


def _naming_errors(step: Callable[[], object], settings: OptimizerConfig) -> Callable[[], object]:
    """Return the `step` of a rule of the user, whose own errors become a `PluginError`. Errors of the GPU and of the
    connection between ranks are not its own: after them, the run starts again."""

    def named_step() -> object:
        try:
            return step()
        except (UserError, dist.DistError, torch.AcceleratorError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise custom_step_error(settings, error) from error

    return named_step


def refuse_other_state(rule: torch.optim.Optimizer, parts: Parts, settings: OptimizerConfig) -> list[TensorPart]:
    """Raise `UserError` if the state of a rule of the user, after a step, is not the one that it declares:
    checkpoints would lack a part of it. Return the parts without state, which had no gradient yet."""
    declared, stateless = {*load_custom_rule(settings.name).state_tensors}, []
    for part in parts:
        if part.master is None:
            continue
        state = rule.state.get(part.master, {})
        names = {*state} - {EMA}
        if names <= {STEP}:
            stateless.append(part)
            continue
        for name in sorted(names ^ declared):
            raise UserError(
                f"optimizer.name ({settings.name}): `state_tensors` names {sorted(declared)}, and its state has "
                f"{sorted(names)}: correct {name}."
            )
        for name in sorted(names - {STEP}):
            kind, shape = getattr(state[name], "dtype", None), getattr(state[name], "shape", None)
            if (kind, shape) != (torch.float32, part.key.shape):  # a resumed run would continue with another type
                raise UserError(
                    f"optimizer.name ({settings.name}): {name} in its state must be a float32 tensor with one value "
                    "for each element of a weight, because checkpoints store and divide it as weights."
                )
    return stateless


EMA = "ema"
"""Name of the running mean of a weight, among the state tensors of any rule."""


def state_tensors(settings: OptimizerConfig, part: TensorPart) -> Mapping[str, StateTensor]:
    """Return the state tensors of a weight, by name: the tensors of the update rule, and the weight's running mean.
    None if the weight is not trained."""
    if not part.parameter.requires_grad:
        return {}
    mean = {} if settings.ema_decay is None else {EMA: StateTensor(start=None)}
    return {**find_rule(settings).state_tensors(settings, part), **mean}


def set_steps(rule: torch.optim.Optimizer, parts: Parts, step: int, settings: OptimizerConfig) -> None:
    """Set the number of steps that an update rule has made. torch's rules count them per tensor, apex's and megaptm's
    per group."""
    counts_steps = settings.is_custom and STEP in load_custom_rule(settings.name).state_tensors
    for group in rule.param_groups:
        group["step"] = step
    if counts_steps or isinstance(rule, torch.optim.AdamW | torch.optim.Adagrad | Muon | OffloadedAdamW):
        for part in parts:
            if part.master is not None and not (isinstance(rule, Muon) and part.placement.in_layer):
                device = None if counts_steps or isinstance(rule, torch.optim.Adagrad) else part.master.device
                # A separate tensor for each: torch would increment a shared one once for each parameter.
                rule.state[part.master]["step"] = torch.tensor(float(step), device=device)
