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
class NegativeSamples:
    """Distinct negative samples of a log-uniform distribution: id r has probability proportional to log((r + 2) / (r +
    1)). Ids must be sorted by frequency."""

    ids: np.ndarray
    """Ids of the negative samples of ELMo's softmax, int64 [K]."""
    num_trials: int
    """Number of trials until K distinct negative ids were sampled."""
    vocabulary: int

    def log_expected(self, ids: Tensor) -> Tensor:
        """ELMo's sampled softmax: return the logarithm of the probability that an id is among the negative samples of
        `num_trials` trials."""
        share = ((ids.double() + 2) / (ids.double() + 1)).log() / math.log(self.vocabulary + 1)
        return (-torch.expm1(self.num_trials * torch.log1p(-share))).log().float()


def sample_negatives(num_samples: int, vocabulary: int, *, key: str) -> NegativeSamples:
    """Sample distinct negative ids for ELMo's softmax with a generator seeded by `key`."""
    digest = hashlib.sha256(key.encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    samples, first = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    while len(first) < num_samples:
        ranks = np.exp(rng.random(2 * num_samples) * np.log(vocabulary + 1)).astype(np.int64) - 1
        samples = np.concatenate([samples, ranks.clip(0, vocabulary - 1)])
        first = np.sort(np.unique(samples, return_index=True)[1])
    selected = first[:num_samples]
    return NegativeSamples(samples[selected], int(selected[-1]) + 1, vocabulary)


def sampled_cross_entropy(
    hidden_ND: Tensor,
    labels_N: Tensor,
    *,
    positive: tuple[Tensor, Tensor],
    negative: tuple[Tensor, Tensor],
    ids_K: Tensor,
    negatives: NegativeSamples,
) -> Tensor:
    """Return the float32 sum of ELMo's sampled softmax losses over samples whose label is not `IGNORED`.

    `positive`: vectors [N, D] and biases [N] of the labels. `negative`: vectors [K, D] and biases [K] of the negative
    samples. A negative that equals the label is masked.
    """
    labels, counted_N = labels_N.clamp(min=0), labels_N != IGNORED
    positive_N = (hidden_ND * positive[0]).sum(-1) + positive[1]
    positive_N = positive_N.float() - negatives.log_expected(labels)
    negative_NK = torch.addmm(negative[1], hidden_ND, negative[0].t()).float() - negatives.log_expected(ids_K)
    negative_NK = negative_NK.masked_fill(labels[:, None] == ids_K, float("-inf"))
    normalizer_N = torch.logsumexp(torch.cat([positive_N[:, None], negative_NK], -1), -1)
    return ((normalizer_N - positive_N) * counted_N).sum()
