"""First values of parameters that are those of a checkpoint of the same model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from megaptm.checkpoint.tensors import TensorReader
from megaptm.errors import UserError

InitialFrom = Callable[[str, Tensor], Tensor]
"""The first value of a parameter, of its name and of the value that it would have."""


def weights_of(reader: TensorReader) -> InitialFrom:
    """What makes the first value of a parameter, by its name, of the one that it would have: the checkpoint's, or that
    one where the checkpoint has none."""
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
