"""Options of evaluation, shared by the command line and Python. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from megaptm.errors import UserError


def _integer_option(minimum: int, help_: str) -> Any:
    """Return the dataclass field of an evaluation option that is an integer or None."""
    return field(default=None, metadata={"minimum": minimum, "help": help_})


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of `megaptm evaluate` and `LoadedModel.evaluate`. Raise UserError for a number that is too small.

    The last three are for models with a recurrence cache: `mem_len`, `clamp_len` and `same_length` of Transformer-XL's
    released code.
    """

    rows: int | None = _integer_option(1, "Held-out samples to evaluate; all by default.")
    sequence: int | None = _integer_option(4, "Tokens per sample; as in training by default, or 512.")
    memory: int | None = _integer_option(0, "Length of the recurrence cache; as in training by default.")
    farthest: int | None = _integer_option(
        1, "Largest relative distance, to which greater ones are clamped; none by default."
    )
    same_length: bool = field(
        default=False, metadata={"help": "Each position attends to as many previous positions as the cache is long."}
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value, minimum = getattr(self, option.name), option.metadata.get("minimum")
            if value is not None and minimum is not None and value < minimum:
                raise UserError(f"{option.name} ({value}) must be {minimum} or more.")

    @property
    def as_trained(self) -> bool:
        """Whether samples are evaluated as they are read in training, so that the result may be saved with the run."""
        return self == EvaluationOptions(rows=self.rows)
