"""Base class and types of config sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Frozen section that rejects unknown keys; `config.errors` words the messages."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
