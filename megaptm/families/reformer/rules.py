"""Config rules of axial positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod

from megaptm.config.family_rules import FamilyRules
from megaptm.families.reformer.spec import AxialInput, grid_of
from megaptm.spec import ModelSpec


class AxialRules(FamilyRules):
    """Rules of the grid of positions."""

    def unused_keys(self, spec: ModelSpec) -> Iterator[tuple[Collection[str], str]]:
        if spec.family.find_input(AxialInput) is None:
            yield ("axial",), "has no axial positions"

    def model_errors(self, spec: ModelSpec) -> Iterator[str]:
        if spec.family.find_input(AxialInput) is None:
            return
        rows, columns = grid_of(spec)
        if (positions := prod((rows, columns))) != spec.context:
            yield (
                f"model.axial ({rows} x {columns}) has {positions} positions, and model.context is {spec.context}: "
                "make them equal, or remove model.axial."
            )
        if spec.size.table_width < 4:
            yield f"model.width ({spec.size.table_width}) is too small for axial positions; make it 4 or more."


RULES = AxialRules()
