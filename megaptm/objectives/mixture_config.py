"""Named mixtures written as composed tasks of a config, so that options can be changed."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from math import lcm
from typing import Any

from megaptm.objectives.mixtures import NamedMixture
from megaptm.objectives.registry import TASKS

LARGEST_DIVISOR = 1_000


def mixture_config(mixture: NamedMixture, **overrides: Any) -> dict[str, dict[str, Any]]:
    """Return the config of a mixture for `compose`. `overrides`: options that replace those of every task that has
    them. Shares become integers; weights are the tasks' defaults."""
    names = {kind: name for name, kind in TASKS.items()}
    shares = [Fraction(task.share.at(0)).limit_denominator(LARGEST_DIVISOR) for task in mixture.tasks]
    multiplier = lcm(*(share.denominator for share in shares))
    config = {}
    for task, share in zip(mixture.tasks, shares, strict=True):
        default: Any = type(task.objective)()
        values = {field.name: getattr(task.objective, field.name) for field in fields(default)}
        values |= {name: value for name, value in overrides.items() if name in values}
        options = {name: value for name, value in values.items() if value != getattr(default, name)}
        config[task.label] = {"task": names[type(task.objective)], "share": int(share * multiplier), **options}
    return config
