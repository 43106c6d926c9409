"""Options of evaluation, shared by the command line and Python. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from megaptm.errors import UserError


def _at_least(least: int, says: str) -> Any:
    """Return a field for an integer or None."""
    return field(default=None, metadata={"least": least, "help": says})


def _flag(says: str) -> Any:
    return field(default=False, metadata={"help": says})


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of `megaptm evaluate` and `LoadedModel.evaluate`. Raise UserError for a number that is too small.

    The last three are for models with a recurrence cache: `mem_len`, `clamp_len` and `same_length` of Transformer-XL's
    released code.
    """

    rows: int | None = _at_least(1, "Held-out rows to measure on; all by default.")
    sequence: int | None = _at_least(4, "Tokens of a row; as in training by default, or 512.")
    memory: int | None = _at_least(0, "Places that are remembered before a row; as in training.")
    farthest: int | None = _at_least(1, "Distance that farther ones are taken for; none by default.")
    same_length: bool = _flag("Each place sees as many places before it as are remembered.")

    def __post_init__(self) -> None:
        for option in fields(self):
            said, least = getattr(self, option.name), option.metadata.get("least")
            if said is not None and least is not None and said < least:
                raise UserError(f"{option.name} ({said}) must be {least} or more.")

    @property
    def as_trained(self) -> bool:
        """Whether samples are read as in training, so that the result may be saved with the run."""
        return self == EvaluationOptions(rows=self.rows)
