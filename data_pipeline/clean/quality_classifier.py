"""Linear classifier over hashed n-grams of words, as fastText's: a text is the set of its n-grams, and its score the
probability that it is like the good examples.

The weights are multiples of 2**-16. So their sum is exact, and scores are equal on every machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.clean.step import cached_by_file
from data_pipeline.clean.words import Words
from megaptm.errors import UserError
from megaptm.storage import AtomicFile, regular_file

FORMAT = "megaptm-quality-1"
SUFFIX = ".quality"
UNIT = 2.0**-16


@dataclass(frozen=True)
class QualityClassifier:
    """Classifier of texts."""

    weights: np.ndarray
    """Weight of each hash of an n-gram, float32 [2**bits]."""
    bias: float
    ngrams: int
    """Maximum number of words of an n-gram."""
    info: dict[str, Any]
    """Number of training examples, and measured quality on held-out examples."""

    def score(self, text: str) -> float:
        """Return the probability that a text is like the good examples; 0 for a text without words."""
        features = hashed_ngrams(text, self.ngrams, len(self.weights))
        if not len(features):
            return 0.0
        total = self.weights[features].sum(dtype=np.float64) / math.sqrt(len(features)) + self.bias
        return 1 / (1 + math.exp(-max(-500.0, min(500.0, float(total)))))

    def scores(self, texts: Iterable[str]) -> list[float]:
        return [self.score(text) for text in texts]

    def save(self, path: str) -> None:
        from safetensors.numpy import save_file

        content = {"format": FORMAT, "bias": self.bias.hex(), "ngrams": str(self.ngrams), "info": json.dumps(self.info)}
        with AtomicFile(path) as part:
            save_file({"weights": self.weights}, str(part), metadata=content)


def hashed_ngrams(text: str, ngrams: int, size: int) -> np.ndarray:
    """Return the distinct n-grams of 1 to `ngrams` words as indexes below `size`, a power of two: int64, ascending."""
    words = Words(text)
    hashes = np.concatenate([words.ngrams(length) for length in range(1, ngrams + 1)])
    return np.unique((hashes & np.uint64(size - 1)).astype(np.int64))


@cached_by_file(maxsize=4)
def load_classifier(path: str) -> QualityClassifier:
    """Load the classifier in a file that `megaptm corpus train-quality` wrote."""
    from safetensors import SafetensorError, safe_open

    remedy = "name a file that `megaptm corpus train-quality` wrote."
    try:
        with safe_open(str(regular_file(path)), framework="np") as file:
            content, weights = file.metadata() or {}, file.get_tensor("weights")
        if content.get("format") != FORMAT:
            raise UserError(f"{path} is not a {FORMAT} file: {remedy}")
        bias, ngrams, info = float.fromhex(content["bias"]), int(content["ngrams"]), json.loads(content["info"])
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {remedy}") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} is not a quality classifier ({error}): {remedy}") from None
    if weights.dtype != np.float32 or weights.ndim != 1 or len(weights).bit_count() != 1 or not 1 <= ngrams <= 5:
        raise UserError(f"{path} is not a quality classifier (its weights have another shape): {remedy}")
    if not (np.isfinite(weights).all() and math.isfinite(bias)):
        raise UserError(f"{path} is not a quality classifier (it has infinite weights): {remedy}")
    return QualityClassifier(weights, bias, ngrams, info)
