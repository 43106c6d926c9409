"""Named mixtures written as composed tasks of a config, so that options can be changed."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from math import lcm
from typing import Any

from megaptm.objectives.mixtures import NamedMixture
from megaptm.objectives.registry import TASKS

LARGEST_DIVISOR = 1_000


def tasks_of(mixture: NamedMixture, **others: Any) -> dict[str, dict[str, Any]]:
    """Return the config of a mixture for `compose`. `others`: options that replace those of every task that has them.
    Shares become integers; weights are the tasks' defaults."""
    kinds = {kind: name for name, kind in TASKS.items()}
    shares = [Fraction(task.share.at(0)).limit_denominator(LARGEST_DIVISOR) for task in mixture.tasks]
    times = lcm(*(share.denominator for share in shares))
    written = {}
    for task, share in zip(mixture.tasks, shares, strict=True):
        usual: Any = type(task.objective)()
        values = {field.name: getattr(task.objective, field.name) for field in fields(usual)}
        given = {name: value for name, value in values.items() if value != getattr(usual, name)}
        given |= {
            name: others[name] for name in values if others.get(name, getattr(usual, name)) != getattr(usual, name)
        }
        written[task.label] = {"task": kinds[type(task.objective)], "share": int(share * times), **given}
    return written
