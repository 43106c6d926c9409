"""The hot loops of word vectors, compiled by numba: what the C code of word2vec does word by word, in the same order.

Letters: V words, D width, T tokens of a row, P the longest path in a Huffman tree. All that is drawn follows from one
number, the row's, so that what a row will touch can be walked through before it is learned.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

NOTHING = -1
LIMIT = 6.0
"""Beyond it the released code, and gensim, make no update."""
ENTRIES = 1000
SCALE = int(ENTRIES / LIMIT / 2)
"""83: both truncate it, and so never read the table's ends."""

# Sums may be taken in another order, which lets them be vectors; NaNs and infinities stay what they are.
FAST = {"reassoc", "contract", "nsz"}


def tables() -> tuple[np.ndarray, np.ndarray]:
    """float32 [1000] twice: the sigmoid at the lower end of each interval of ±6, and its logarithm."""
    at = (np.arange(ENTRIES) / ENTRIES * 2 - 1) * LIMIT
    return (1 / (1 + np.exp(-at))).astype(np.float32), -np.log1p(np.exp(-at)).astype(np.float32)


@njit(cache=True, nogil=True)
def _next(state):
    """splitmix64: 64 random bits, and the state after them."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    mixed = state
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, mixed ^ (mixed >> np.uint64(31))


@njit(cache=True, nogil=True)
def fill_uniform(table_RD, rows, seed, width):
    """Row r of the table := U(-1/2, 1/2) / D, a function of the seed and of its number in the whole, `rows[r]`."""
    for r in range(table_RD.shape[0]):
        state = np.uint64(seed) ^ (np.uint64(rows[r] + 1) * np.uint64(0xD1342543DE82EF95))
        for d in range(table_RD.shape[1]):
            state, bits = _next(state)
            table_RD[r, d] = ((bits >> np.uint64(40)) / 16777216.0 - 0.5) / width


@njit(cache=True, nogil=True)
def keep(tokens, documents, thresholds, seed, kept, borders):
    """The words of a row that are not passed over, and their documents; returns how many, and the state after them.

    A word stays where 32 random bits are below its threshold; one that is always passed over draws nothing.
    """
    state, count = np.uint64(seed), 0
    for t in range(tokens.shape[0]):
        threshold = thresholds[tokens[t]]
        if threshold == 0:
            continue
        if threshold < np.uint64(1 << 32):
            state, bits = _next(state)
            if (bits >> np.uint64(32)) >= threshold:
                continue
        kept[count], borders[count] = tokens[t], documents[t]
        count += 1
    return count, state


@njit(cache=True, nogil=True)
def _window(borders, count, i, window, shrink, state):
    """First and last + 1 place of the window around place i, cut at the borders of its document."""
    reach = window
    if shrink:
        state, bits = _next(state)
        reach = 1 + np.int64((bits >> np.uint64(32)) * np.uint64(window) >> np.uint64(32))
    first, last = i, i + 1
    while first > 0 and first > i - reach and borders[first - 1] == borders[i]:
        first -= 1
    while last < count and last <= i + reach and borders[last] == borders[i]:
        last += 1
    return first, last, state


@njit(cache=True, nogil=True)
def _noise(word, negatives, accept, alias, rows, labels, state):
    """`rows` := the word, then words drawn by the alias method; one that is the word itself is left out, as in C."""
    rows[0], labels[0], n = word, 1.0, 1
    size = np.uint64(accept.shape[0])
    for _ in range(negatives):
        state, bits = _next(state)
        drawn = np.int64((bits >> np.uint64(32)) * size >> np.uint64(32))
        if (bits & np.uint64(0xFFFFFFFF)) >= accept[drawn]:
            drawn = alias[drawn]
        if drawn != word:
            rows[n], labels[n] = drawn, 0.0
            n += 1
    return n, state


@njit(cache=True, nogil=True)
def _path(word, points, codes, rows, labels):
    """`rows` := the inner nodes from the root of the tree to the word; a turn of 0 is a yes."""
    n = 0
    while n < points.shape[1] and points[word, n] >= 0:
        rows[n], labels[n] = points[word, n], 1.0 - codes[word, n]
        n += 1
    return n


@njit(cache=True, nogil=True, fastmath=FAST)
def _ask(hidden, out_RD, rows, labels, n, rate, sigmoid, logarithm, exact, error):
    """Ask a hidden vector for n answers, one after the other, each moving its row; the hidden vector's own move is left
    in `error`. Returns the loss: minus the sum of the logarithms of what each answer was given."""
    loss = 0.0
    for t in range(n):
        row = rows[t]
        score = np.float32(0.0)
        for d in range(hidden.shape[0]):
            score += hidden[d] * out_RD[row, d]
        if exact:
            likely = np.float32(1.0 / (1.0 + math.exp(-score)))
            signed = float(score if labels[t] == 1.0 else -score)
            loss += math.log1p(math.exp(-abs(signed))) - min(signed, 0.0)
        elif score >= LIMIT or score <= -LIMIT:
            loss -= min(float(score if labels[t] == 1.0 else -score), 0.0)
            continue
        elif score != score:
            return np.nan
        else:
            at = int((score + np.float32(LIMIT)) * np.float32(SCALE))
            likely = sigmoid[at]
            # log(1 - s(x)) = log s(x) - x
            loss -= float(logarithm[at] if labels[t] == 1.0 else logarithm[at] - score)
        move = (labels[t] - likely) * rate
        for d in range(hidden.shape[0]):
            error[d] += move * out_RD[row, d]
        for d in range(hidden.shape[0]):
            out_RD[row, d] += move * hidden[d]
    return loss


@njit(cache=True, nogil=True, fastmath=FAST)
def learn(
    cbow,
    in_RD,
    out_RD,
    kept,
    borders,
    state,
    window,
    shrink,
    negatives,
    accept,
    alias,
    points,
    codes,
    rate,
    sigmoid,
    logarithm,
    exact,
    in_places,
    out_places,
):
    """Learn from a row's words, place by place; returns loss and number of answers.

    `negatives` 0: along the tree. `in_places` and `out_places` [V]: where the rows of words lie in tables that hold
    only those that are touched; empty: the tables are whole.
    """
    width, count = in_RD.shape[1], kept.shape[0]
    rows = np.empty(max(negatives + 1, points.shape[1]), np.int64)
    labels = np.empty(rows.shape[0], np.float32)
    hidden, error = np.empty(width, np.float32), np.empty(width, np.float32)
    loss, asked = 0.0, 0
    placed = in_places.shape[0] > 0
    speed = np.float32(rate)
    for i in range(count):
        first, last, state = _window(borders, count, i, window, shrink, state)
        others = last - first - 1
        if others == 0:
            continue
        n = 0
        if cbow:
            hidden[:] = 0.0
            for j in range(first, last):
                if j != i:
                    at = in_places[kept[j]] if placed else kept[j]
                    for d in range(width):
                        hidden[d] += in_RD[at, d]
            share = np.float32(1.0 / others)
            for d in range(width):
                hidden[d] *= share
        for j in range(first, last):
            if cbow and j != first:
                break
            if not cbow and j == i:
                continue
            if negatives > 0:
                n, state = _noise(kept[i], negatives, accept, alias, rows, labels, state)
            else:
                n = _path(kept[i], points, codes, rows, labels)
            if placed:
                for t in range(n):
                    rows[t] = out_places[rows[t]]
            error[:] = 0.0
            asked += 1
            if cbow:
                loss += _ask(hidden, out_RD, rows, labels, n, speed, sigmoid, logarithm, exact, error)
            else:
                at = in_places[kept[j]] if placed else kept[j]
                loss += _ask(in_RD[at], out_RD, rows, labels, n, speed, sigmoid, logarithm, exact, error)
                for d in range(width):
                    in_RD[at, d] += error[d]
        if cbow:
            for j in range(first, last):
                if j != i:
                    at = in_places[kept[j]] if placed else kept[j]
                    for d in range(width):
                        in_RD[at, d] += error[d]
    return loss, asked


@njit(cache=True, nogil=True)
def touch(cbow, kept, borders, state, window, shrink, negatives, accept, alias, points, codes, in_touched, out_touched):
    """Mark the rows that `learn` will touch: `in_touched` and `out_touched`, bool [V]. It draws what that draws."""
    count = kept.shape[0]
    rows = np.empty(max(negatives + 1, points.shape[1]), np.int64)
    labels = np.empty(rows.shape[0], np.float32)
    for i in range(count):
        first, last, state = _window(borders, count, i, window, shrink, state)
        others = last - first - 1
        if others == 0:
            continue
        for j in range(first, last):
            if j != i:
                in_touched[kept[j]] = True
        for _ in range(1 if cbow else others):
            if negatives > 0:
                n, state = _noise(kept[i], negatives, accept, alias, rows, labels, state)
            else:
                n = _path(kept[i], points, codes, rows, labels)
            for t in range(n):
                out_touched[rows[t]] = True


@njit(cache=True, nogil=True)
def add_rows(table_RD, rows, changes_UD):
    """Add a change to each of some rows, one after the other; a row may come again."""
    for u in range(rows.shape[0]):
        for d in range(table_RD.shape[1]):
            table_RD[rows[u], d] += changes_UD[u, d]
