"""Tokens that see all of their document and are seen by all of it, where attention is of some places alone."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

GlobalTokens = Annotated[int, Field(ge=0, le=1 << 20)]
"""An option: how many first places of each document are such; 0: none, and rows say nothing of it."""


def first_places(count: int, positions: np.ndarray, document_ids: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The field `global_tokens`, int64 [S], where there are such: 1 at the first places of each document, `positions`
    [S] say which; padding, where `document_ids` [S] is 0, is none."""
    if not count:
        return {}
    marks = (positions < count).astype(np.int64)
    return {"global_tokens": marks if document_ids is None else marks * (document_ids > 0)}
