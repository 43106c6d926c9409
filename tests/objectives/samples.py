"""Random slices of documents, and the documents of a sample."""

import numpy as np

from megaptm.batch import IGNORED
from megaptm.objectives.objective import DocumentSlice
from tests.data.corpora import SPECIALS, tiny_special, word_starts

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


def with_words(document: DocumentSlice) -> DocumentSlice:
    """Annotate the starts of words."""
    words = word_starts(document.tokens) if len(document.tokens) else np.zeros(0, dtype=int)
    return DocumentSlice(document.tokens, document.slots, annotations={"words": words})


def word_ids(tokens: np.ndarray) -> np.ndarray:
    """Return the word of each token. A word ends before the next word and before a special token."""
    starts = (tokens % 3 > 0) | (tokens < SPECIALS)
    starts[1:] |= (tokens < SPECIALS)[:-1]
    return np.cumsum(starts)


def original_tokens(sample: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens before masking, and bool: which positions are predicted."""
    tokens, is_target = sample["tokens"].copy(), np.zeros(len(sample["tokens"]), dtype=bool)
    real = sample["labels"] != IGNORED
    tokens[sample["masked_positions"][real]] = sample["labels"][real]
    is_target[sample["masked_positions"][real]] = True
    return tokens, is_target


def unmask(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the sample before masking."""
    return sample | {"tokens": original_tokens(sample)[0]}


def fill_sentinels(inputs: list[int], targets: list[int]) -> list[int]:
    """Restore the text of one document from encoder inputs and decoder labels with sentinels."""
    assert inputs[-1] == targets[-1] == SPECIAL.end
    spans: dict[int, list[int]] = {}
    for token in targets[:-1]:
        if token in SPECIAL.sentinels:
            spans[token] = []
        else:
            spans[next(reversed(spans))].append(token)
    return [original for token in inputs[:-1] for original in spans.get(token, [token])]
