"""Parts of documents as an order would hand them to an objective."""

import numpy as np

from megaptm.objectives.objective import DocumentSlice
from tests.data.corpora import SPECIALS, tiny_special

SPECIAL = tiny_special()


def part(length: int, slots: int = 0, seed: int = 0) -> DocumentSlice:
    """`length` random ordinary tokens."""
    return DocumentSlice(
        np.random.default_rng([length, seed]).integers(SPECIALS, 1000, length).astype(np.uint16), slots
    )


def documents(sample: dict[str, np.ndarray], field: str = "tokens", numbers: str = "document_ids") -> list[list[int]]:
    """The tokens of each document of a row."""
    count = int(sample[numbers].max(initial=0))
    return [sample[field][sample[numbers] == number].tolist() for number in range(1, count + 1)]
