"""The update rules by name: how each is made, and what it remembers of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from megaptm.config import OptimizerConfig
from megaptm.parallel.optimizers.adafactor import Adafactor, is_factored
from megaptm.parallel.optimizers.lamb import Lamb
from megaptm.parallel.optimizers.part import TensorPart

Groups = list[dict[str, Any]]
Parts = Sequence[TensorPart]


@dataclass(frozen=True)
class StateTensor:
    """A tensor that a rule remembers of a weight, under its name in the rule's `state` and in checkpoints."""

    like: Literal["weight", "rows", "columns"] = "weight"
    """`weight`: a number for each of its elements; `rows`, `columns`: one for each row, or for each column of each of
    its matrices, which all data ranks have."""
    start: float = 0.0
    """Before the first step."""


@dataclass(frozen=True)
class Rule:
    """An update rule."""

    build: Callable[[Groups, OptimizerConfig, Parts, bool], torch.optim.Optimizer] | None
    """Over groups that have no tensors yet; of all that is trained, its part on this rank; whether data ranks divide
    these. None: megatron-core builds it."""
    remembers: Callable[[OptimizerConfig, TensorPart], Mapping[str, StateTensor]]
    """Of a tensor, whoever holds it."""


def _sgd(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=True)


def _adagrad(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    rule = torch.optim.Adagrad(groups, lr=settings.lr, eps=settings.eps)
    for part in parts:
        if part.master is not None:
            start = torch.full_like(part.master, settings.initial_accumulator)
            rule.state[part.master] = {"step": torch.tensor(0.0), "sum": start}
    return rule


def _lamb(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    return Lamb(
        groups,
        parts,
        divided=divided,
        betas=settings.betas,
        eps=settings.eps,
        bias_correction=settings.bias_correction,
    )


def _adafactor(groups: Groups, settings: OptimizerConfig, parts: Parts, divided: bool) -> torch.optim.Optimizer:
    own = settings.adafactor.model_dump()
    return Adafactor(groups, parts, divided=divided, momentum=settings.momentum, **own)


def _moments(settings: OptimizerConfig, part: TensorPart) -> Mapping[str, StateTensor]:
    return {"exp_avg": StateTensor(), "exp_avg_sq": StateTensor()}


def _factors(settings: OptimizerConfig, part: TensorPart) -> Mapping[str, StateTensor]:
    mean = {"exp_avg": StateTensor()} if settings.momentum else {}
    if is_factored(part, settings.adafactor.factor_from):
        return mean | {"exp_avg_sq_row": StateTensor("rows"), "exp_avg_sq_col": StateTensor("columns")}
    return mean | {"exp_avg_sq": StateTensor()}


RULES: dict[str, Rule] = {
    "adamw": Rule(None, _moments),
    "sgd": Rule(_sgd, lambda settings, part: {"momentum_buffer": StateTensor()} if settings.momentum else {}),
    "adagrad": Rule(_adagrad, lambda settings, part: {"sum": StateTensor(start=settings.initial_accumulator)}),
    "lamb": Rule(_lamb, _moments),
    "adafactor": Rule(_adafactor, _factors),
}


def set_steps(rule: torch.optim.Optimizer, parts: Parts, step: int) -> None:
    """So many steps have been made: each of torch's rules counts them by tensor, apex's and ours by group."""
    for group in rule.param_groups:
        group["step"] = step
    if isinstance(rule, torch.optim.AdamW | torch.optim.Adagrad):
        for part in parts:
            if part.master is not None:
                device = part.master.device if isinstance(rule, torch.optim.AdamW) else None
                # Of its own for each tensor: torch advances it once for each that it finds it on.
                rule.state[part.master]["step"] = torch.tensor(float(step), device=device)
