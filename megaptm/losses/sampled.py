"""Cross-entropy against negative samples (sampled softmax, arXiv:1412.2007, section 3.1)."""

# N samples, D width, K negative samples

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from megaptm.batch import IGNORED


@dataclass(frozen=True)
class DrawnWords:
    """Distinct negative samples of a log-uniform distribution: id r has probability proportional to log((r + 2) / (r +
    1)). Ids must be sorted by frequency."""

    ids: np.ndarray
    """Sampled ids, int64 [K]."""
    tries: int
    """Number of trials until K distinct ids were sampled."""
    vocabulary: int

    def log_expected(self, ids: Tensor) -> Tensor:
        """Return the logarithm of the probability that an id is sampled in `tries` trials."""
        share = ((ids.double() + 2) / (ids.double() + 1)).log() / math.log(self.vocabulary + 1)
        return (-torch.expm1(self.tries * torch.log1p(-share))).log().float()


def draw_negatives(number: int, vocabulary: int, *, key: str) -> DrawnWords:
    """Sample distinct ids with a generator seeded by `key`."""
    digest = hashlib.sha256(key.encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    drawn, first = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    while len(first) < number:
        ranks = np.exp(rng.random(2 * number) * np.log(vocabulary + 1)).astype(np.int64) - 1
        drawn = np.concatenate([drawn, ranks.clip(0, vocabulary - 1)])
        first = np.sort(np.unique(drawn, return_index=True)[1])
    kept = first[:number]
    return DrawnWords(drawn[kept], int(kept[-1]) + 1, vocabulary)


def sampled_cross_entropy(
    hidden_ND: Tensor,
    labels_N: Tensor,
    *,
    right: tuple[Tensor, Tensor],
    drawn: tuple[Tensor, Tensor],
    ids_K: Tensor,
    negatives: DrawnWords,
) -> Tensor:
    """Return the float32 sum of losses over samples whose label is not `IGNORED`.

    `right`: vectors [N, D] and biases [N] of the labels. `drawn`: vectors [K, D] and biases [K] of the negative
    samples. A negative that equals the label is masked.
    """
    labels, counted_N = labels_N.clamp(min=0), labels_N != IGNORED
    right_N = (hidden_ND * right[0]).sum(-1) + right[1]
    right_N = right_N.float() - negatives.log_expected(labels)
    drawn_NK = torch.addmm(drawn[1], hidden_ND, drawn[0].t()).float() - negatives.log_expected(ids_K)
    drawn_NK = drawn_NK.masked_fill(labels[:, None] == ids_K, float("-inf"))
    normalizer_N = torch.logsumexp(torch.cat([right_N[:, None], drawn_NK], -1), -1)
    return ((normalizer_N - right_N) * counted_N).sum()
