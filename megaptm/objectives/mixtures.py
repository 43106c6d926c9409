"""Mixtures of objectives' tasks under one name."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.objectives.composed import Composed, StepValue


@dataclass(frozen=True)
class NamedMixture(Composed):
    """Mixture of tasks with fixed shares, under one name."""

    label: str = ""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.label


def share_of_third(parts: int = 1) -> StepValue:
    """Return the share of one of `parts` tasks that together have a third of a mixture's samples, equally divided."""
    return StepValue((0,), (1 / (3 * parts),))
