"""Global tokens for window and block attention."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

GlobalTokens = Annotated[int, Field(ge=0, le=1 << 20)]
"""Option: number of global tokens at the start of each document; 0: none, and no field in the batch."""


def mark_global_tokens(
    count: int, positions: np.ndarray, document_ids: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the field `global_tokens`, int64 [S]: 1 at the first `count` positions of each document. `positions` [S]
    are positions in the document; `document_ids` [S] is 0 at padding, which is not marked. Empty if `count` is 0."""
    if not count:
        return {}
    marks = (positions < count).astype(np.int64)
    return {"global_tokens": marks if document_ids is None else marks * (document_ids > 0)}
