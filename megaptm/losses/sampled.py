"""Cross-entropy against some words that stand for all others (sampled softmax, arXiv:1412.2007, section 3.1)."""

# N rows, D width, K words that are drawn

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
    """Different words, drawn by rank: the word of rank r, from 0, as often as log((r + 2) / (r + 1)), so that ids must
    be sorted by how often words come."""

    ids: np.ndarray
    """int64 [K]"""
    tries: int
    """How often was drawn until there were K different ones."""
    vocabulary: int

    def log_expected(self, ids: Tensor) -> Tensor:
        """The logarithm of how often a word is expected among as many tries, once at most."""
        share = ((ids.double() + 2) / (ids.double() + 1)).log() / math.log(self.vocabulary + 1)
        return (-torch.expm1(self.tries * torch.log1p(-share))).log().float()


def draw_negatives(number: int, vocabulary: int, *, key: str) -> DrawnWords:
    """So many, by a generator that the key says."""
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
    """The float32 sum over the rows whose label is not `IGNORED`. `right`: of each row's label the vector [N, D] and
    the bias [N]; `drawn`: of what is drawn, [K, D] and [K]. A word that is drawn and right is not held against
    itself."""
    labels, counted_N = labels_N.clamp(min=0), labels_N != IGNORED
    right_N = (hidden_ND * right[0]).sum(-1) + right[1]
    right_N = right_N.float() - negatives.log_expected(labels)
    drawn_NK = torch.addmm(drawn[1], hidden_ND, drawn[0].t()).float() - negatives.log_expected(ids_K)
    drawn_NK = drawn_NK.masked_fill(labels[:, None] == ids_K, float("-inf"))
    normalizer_N = torch.logsumexp(torch.cat([right_N[:, None], drawn_NK], -1), -1)
    return ((normalizer_N - right_N) * counted_N).sum()
