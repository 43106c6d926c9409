"""Initial values from a checkpoint of the same model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from megaptm.checkpoint.tensors import TensorReader
from megaptm.errors import UserError

InitialFrom = Callable[[str, Tensor], Tensor]
"""Function from a parameter's name and usual initial value to the value it gets."""


def weights_of(reader: TensorReader) -> InitialFrom:
    """Return a function that reads initial values from a checkpoint. Parameters absent there get their usual value."""
    kept = {*reader.names()}

    def initial_from(name: str, usual: Tensor) -> Tensor:
        if f"weight/{name}" not in kept:
            return usual
        theirs = reader.read(f"weight/{name}")
        if theirs.shape != usual.shape:
            raise UserError(
                f"train.init_from: {name} is {[*theirs.shape]} there, and {[*usual.shape]} in this run: make them "
                "equal, or leave train.init_from out."
            )
        return theirs

    return initial_from
