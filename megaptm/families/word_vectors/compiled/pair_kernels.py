"""Inner loop of GloVe, compiled by numba; it processes pairs in the same order as the released code."""

from __future__ import annotations

import math

import numpy as np

from megaptm.families.word_vectors.compiled.decorator import compiled
from megaptm.families.word_vectors.compiled.kernels import FAST

CLIP = 100.0
"""Bound of each gradient element of GloVe, as in the released code."""


@compiled(fastmath=FAST)
def train_pairs(
    word_RN, context_RN, words, contexts, counts, lanes, first, round_, x_max, alpha, rate, bias_rate, losses
):
    """Train GloVe on pairs of words and their counts, one after the other, as the released code does.

    - A row holds a vector, its bias, and the AdaGrad sum of each of these values: N is 2 (D + 1).
    - `lanes`: number of lanes held, from `first` on, in a `RotatingTable` after `round_` rounds.
    - `losses`, float64 [all lanes]: the loss of each pair is added in its word's lane. The sum then does not depend on
      which rank holds a lane.

    A rate of 0 updates nothing.
    """
    width, all_lanes = word_RN.shape[1] // 2 - 1, losses.shape[0]
    square_sums = width + 1
    for p in range(words.shape[0]):
        word, context = words[p], contexts[p]
        w = word // all_lanes * lanes + word % all_lanes - first
        c = context // all_lanes * lanes + ((context - first - round_) % all_lanes + round_) % lanes
        error = np.float64(word_RN[w, width] + context_RN[c, width]) - math.log(counts[p])
        product = word_RN.dtype.type(0.0)
        for d in range(width):
            product += word_RN[w, d] * context_RN[c, d]
        error += product
        weighted = error if counts[p] > x_max else error * (counts[p] / x_max) ** alpha
        losses[word % all_lanes] += weighted * error
        if rate == 0.0:
            continue
        for d in range(width):
            # Both updates are computed before either is applied.
            word_update = min(max(weighted * context_RN[c, d], -CLIP), CLIP) * rate
            context_update = min(max(weighted * word_RN[w, d], -CLIP), CLIP) * rate
            word_RN[w, d] -= word_update / math.sqrt(word_RN[w, square_sums + d])
            context_RN[c, d] -= context_update / math.sqrt(context_RN[c, square_sums + d])
            # The square root uses the sum before this update.
            word_RN[w, square_sums + d] += word_update * word_update
            context_RN[c, square_sums + d] += context_update * context_update
        bias_update = weighted * bias_rate
        word_RN[w, width] -= bias_update / math.sqrt(word_RN[w, square_sums + width])
        context_RN[c, width] -= bias_update / math.sqrt(context_RN[c, square_sums + width])
        word_RN[w, square_sums + width] += bias_update * bias_update
        context_RN[c, square_sums + width] += bias_update * bias_update
