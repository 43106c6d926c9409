"""Inner loop of GloVe, compiled by numba; it processes pairs in the same order as the released code."""

from __future__ import annotations

import math

import numpy as np

from megaptm.words.compiled import compiled
from megaptm.words.kernels import FAST

CLIP = 100.0
"""Bound of each gradient element, as in the released code."""


@compiled(fastmath=FAST)
def learn_pairs(
    word_RN, context_RN, words, contexts, counts, lanes, first, round_, x_max, alpha, rate, bias_rate, losses
):
    """Train on pairs and their counts, one after the other, as the released code does.

    - A row holds a vector, its bias, and the AdaGrad sum of each of these values: N is 2 (D + 1).
    - `lanes`: number of lanes held, from `first` on, in a `RotatingTable` after `round_` rounds.
    - `losses`, float64 [all lanes]: the loss of each pair is added in its word's lane. The sum then does not depend on
      which rank holds a lane.

    A rate of 0 updates nothing.
    """
    width, every = word_RN.shape[1] // 2 - 1, losses.shape[0]
    sums = width + 1
    for p in range(words.shape[0]):
        word, context = words[p], contexts[p]
        w = word // every * lanes + word % every - first
        c = context // every * lanes + ((context - first - round_) % every + round_) % lanes
        off = np.float64(word_RN[w, width] + context_RN[c, width]) - math.log(counts[p])
        product = word_RN.dtype.type(0.0)
        for d in range(width):
            product += word_RN[w, d] * context_RN[c, d]
        off += product
        weighed = off if counts[p] > x_max else off * (counts[p] / x_max) ** alpha
        losses[word % every] += weighed * off
        if rate == 0.0:
            continue
        for d in range(width):
            # Both updates are computed before either is applied.
            of_word = min(max(weighed * context_RN[c, d], -CLIP), CLIP) * rate
            of_context = min(max(weighed * word_RN[w, d], -CLIP), CLIP) * rate
            word_RN[w, d] -= of_word / math.sqrt(word_RN[w, sums + d])
            context_RN[c, d] -= of_context / math.sqrt(context_RN[c, sums + d])
            # The square root uses the sum before this update.
            word_RN[w, sums + d] += of_word * of_word
            context_RN[c, sums + d] += of_context * of_context
        of_bias = weighed * bias_rate
        word_RN[w, width] -= of_bias / math.sqrt(word_RN[w, sums + width])
        context_RN[c, width] -= of_bias / math.sqrt(context_RN[c, sums + width])
        word_RN[w, sums + width] += of_bias * of_bias
        context_RN[c, sums + width] += of_bias * of_bias
