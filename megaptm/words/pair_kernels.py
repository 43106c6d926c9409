"""The hot loop of GloVe, compiled by numba: what its released code does pair by pair, in the same order."""

from __future__ import annotations

import math

import numpy as np

from megaptm.words.compiled import compiled
from megaptm.words.kernels import FAST

CLIP = 100.0
"""The released code cuts each number of a gradient here."""


@compiled(fastmath=FAST)
def learn_pairs(
    word_RN, context_RN, words, contexts, counts, lanes, first, round_, x_max, alpha, rate, bias_rate, losses
):
    """Learn from pairs of words and their counts, one after the other, as the released code does.

    A row is a vector, its bias, and for each of these numbers the sum of the squares of how far it was to move: N is
    2 (D + 1). `lanes`: those of `first` on are held, in a `RotatingTable` after so many rounds. To `losses`, float64
    [lanes of all], what each pair is off is added, to the word's lane: so the sum does not depend on who has which
    lane. A rate of zero moves nothing.
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
            # Neither is changed before both have moved.
            of_word = min(max(weighed * context_RN[c, d], -CLIP), CLIP) * rate
            of_context = min(max(weighed * word_RN[w, d], -CLIP), CLIP) * rate
            word_RN[w, d] -= of_word / math.sqrt(word_RN[w, sums + d])
            context_RN[c, d] -= of_context / math.sqrt(context_RN[c, sums + d])
            # The square root is that of the sum before.
            word_RN[w, sums + d] += of_word * of_word
            context_RN[c, sums + d] += of_context * of_context
        of_bias = weighed * bias_rate
        word_RN[w, width] -= of_bias / math.sqrt(word_RN[w, sums + width])
        context_RN[c, width] -= of_bias / math.sqrt(context_RN[c, sums + width])
        word_RN[w, sums + width] += of_bias * of_bias
        context_RN[c, sums + width] += of_bias * of_bias
