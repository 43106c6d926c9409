"""What all sections of a config are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Counts = Count | Annotated[tuple[Count, ...], Field(min_length=1), Strict(False)]
"""One for all layers, or several, which they take in turn."""


class Section(BaseModel):
    """Frozen, and a key that is not a field is refused; `config.errors` words what is told of a mistake."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
