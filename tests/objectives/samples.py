"""Random slices of documents, and the documents of a sample."""

import numpy as np

from megaptm.objectives.objective import DocumentSlice
from tests.data.corpora import SPECIALS, tiny_special

SPECIAL = tiny_special()


def random_slice(length: int, slots: int = 0, seed: int = 0) -> DocumentSlice:
    """Return a slice of `length` random ordinary tokens."""
    return DocumentSlice(
        np.random.default_rng([length, seed]).integers(SPECIALS, 1000, length).astype(np.uint16), slots
    )


def split_documents(sample: dict[str, np.ndarray], field: str = "tokens", ids: str = "document_ids") -> list[list[int]]:
    """Return the values of each document of a sample."""
    num_documents = int(sample[ids].max(initial=0))
    return [sample[field][sample[ids] == document].tolist() for document in range(1, num_documents + 1)]
