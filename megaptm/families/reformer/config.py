"""Keys of the section `model` for models with axial positions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict

from megaptm.section import Count, Section


class AxialKeys(Section):
    """Keys of axial positions in the section `model`."""

    axial: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Axial positions: rows and columns of the grid of positions. Default: from `family`; for another context,
    nearly a square."""


MODEL_KEYS = AxialKeys
