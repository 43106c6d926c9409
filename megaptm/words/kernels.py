"""Inner loops of word vectors, compiled by numba; they process words in the same order as word2vec's C code.

Letters: V words, D width, T tokens of a sequence, P length of the longest path in a Huffman tree. All random values
follow from one seed per sequence, so the rows that a sequence will update can be found in advance.
"""

from __future__ import annotations

import math

import numpy as np

from megaptm.words.compiled import compiled
from megaptm.words.prefetch import prefetch

NOTHING = -1
LIMIT = 6.0
"""Scores beyond it cause no update, as in the released code and gensim."""
ENTRIES = 1000
SCALE = int(ENTRIES / LIMIT / 2)
"""83: both implementations truncate it, and so never read the ends of the table."""

# Allows sums in another order, for vectorization; NaN and infinities keep their meaning.
FAST = {"reassoc", "contract", "nsz"}


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Return float32 [1000] twice: the sigmoid at the lower end of each interval of ±6, and its logarithm."""
    at = (np.arange(ENTRIES) / ENTRIES * 2 - 1) * LIMIT
    return (1 / (1 + np.exp(-at))).astype(np.float32), -np.log1p(np.exp(-at)).astype(np.float32)


@compiled()
def _next(state):
    """Return the next state and 64 random bits (splitmix64)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    mixed = state
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, mixed ^ (mixed >> np.uint64(31))


@compiled()
def fill_uniform(table_RD, rows, seed, most):
    """Fill table rows with U(-most, most), a function of the seed and of each row's index in the full table,
    `rows[r]`."""
    for r in range(table_RD.shape[0]):
        state = np.uint64(seed) ^ (np.uint64(rows[r] + 1) * np.uint64(0xD1342543DE82EF95))
        for d in range(table_RD.shape[1]):
            state, bits = _next(state)
            table_RD[r, d] = ((bits >> np.uint64(40)) / 8388608.0 - 1.0) * most


@compiled()
def keep(tokens, documents, thresholds, seed, kept, borders):
    """Write the words of a sequence that survive subsampling, and their documents; return their number and the next
    state.

    A word is kept if 32 random bits are below its threshold. Words that are never kept use no random bits.
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


@compiled()
def _window(borders, count, i, window, shrink, state):
    """Return first and last + 1 position of the window around position i, limited to its document, and the next
    state."""
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


@compiled()
def _noise(word, negatives, accept, alias, rows, labels, state):
    """Write the word and its negative samples (alias method) to `rows`; a sample equal to the word is dropped, as in
    the C code."""
    rows[0], labels[0], n = word, 1.0, 1
    size = np.uint64(accept.shape[0])
    for _ in range(negatives):
        state, bits = _next(state)
        drawn = np.int64((bits >> np.uint64(32)) * size >> np.uint64(32))
        # A product instead of a branch: the outcome is unpredictable, and a misprediction costs as much as ten samples.
        drawn += (np.int64(alias[drawn]) - drawn) * np.int64((bits & np.uint64(0xFFFFFFFF)) >= accept[drawn])
        if drawn != word:
            rows[n], labels[n] = drawn, 0.0
            n += 1
    return n, state


@compiled()
def _noise_ahead(
    kept, i, first, questions, outward, negatives, accept, alias, out_RD, out_places, rows, labels, counts, state
):
    """Run `_noise` for all predictions of a window in advance: `rows` and `labels` [Q, N], with `counts` [Q] entries
    each. Return the next state. The label is the word at position i, or with `outward` each word around it.

    All rows are prefetched together. Otherwise each prediction would wait for memory longer than it computes: tables
    exceed caches, and random rows are not predictable for the processor.
    """
    for q in range(questions):
        j = first + q
        answer = kept[i] if not outward else kept[j] if j < i else kept[j + 1]
        counts[q], state = _noise(answer, negatives, accept, alias, rows[q], labels[q], state)
        for t in range(counts[q]):
            if out_places.shape[0] > 0:
                rows[q, t] = out_places[rows[q, t]]
            prefetch(out_RD, rows[q, t])
    return state


@compiled()
def _path(word, points, codes, rows, labels):
    """Write the inner nodes from the root of the Huffman tree to the word; label 1 stands for turn 0."""
    n = 0
    while n < points.shape[1] and points[word, n] >= 0:
        rows[n], labels[n] = points[word, n], 1.0 - codes[word, n]
        n += 1
    return n


@compiled()
def _all(word, words, rows, labels):
    """Write all words to `rows`."""
    for t in range(words.shape[0]):
        rows[t], labels[t] = words[t], 1.0 if words[t] == word else 0.0
    return words.shape[0]


@compiled(fastmath=FAST)
def _ask_all(hidden, out_RD, rows, labels, n, rate, scores, error):
    """Predict one of n rows from a hidden vector by a softmax; update all rows at once and add the hidden vector's
    update to `error`. Return the loss. `scores` [n] is scratch space."""
    most, told = np.float32(-np.inf), np.float32(0.0)
    for t in range(n):
        score = np.float32(0.0)
        for d in range(hidden.shape[0]):
            score += hidden[d] * out_RD[rows[t], d]
        scores[t] = score
        if score > most:
            most = score
        if labels[t] == 1.0:
            told = score
    total = 0.0
    for t in range(n):
        scores[t] = math.exp(scores[t] - most)
        total += scores[t]
    for t in range(n):
        move = np.float32((labels[t] - scores[t] / total) * rate)
        for d in range(hidden.shape[0]):
            error[d] += move * out_RD[rows[t], d]
        for d in range(hidden.shape[0]):
            out_RD[rows[t], d] += move * hidden[d]
    return math.log(total) + most - told


@compiled(fastmath=FAST)
def _ask(hidden, out_RD, rows, labels, n, rate, sigmoid, logarithm, exact, error):
    """Predict n binary labels from a hidden vector, one after the other, each updating its row; add the hidden vector's
    update to `error`. Return the loss: minus the sum of log probabilities of the labels."""
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
            was = out_RD[row, d]
            error[d] += move * was
            out_RD[row, d] = was + move * hidden[d]
    return loss


@compiled(fastmath=FAST)
def _add_rows_of(in_RD, word, starts, pieces, in_places, hidden):
    """Add the rows of a word and its subwords to a hidden vector; return their number."""
    if starts.shape[0] == 0:
        at = in_places[word] if in_places.shape[0] > 0 else word
        for d in range(hidden.shape[0]):
            hidden[d] += in_RD[at, d]
        return 1
    for p in range(starts[word], starts[word + 1]):
        at = in_places[pieces[p]] if in_places.shape[0] > 0 else pieces[p]
        for d in range(hidden.shape[0]):
            hidden[d] += in_RD[at, d]
    return starts[word + 1] - starts[word]


@compiled(fastmath=FAST)
def _move_rows_of(in_RD, word, starts, pieces, in_places, error):
    """Add the update of a hidden vector to each row of which it is the mean."""
    if starts.shape[0] == 0:
        at = in_places[word] if in_places.shape[0] > 0 else word
        for d in range(error.shape[0]):
            in_RD[at, d] += error[d]
        return
    for p in range(starts[word], starts[word + 1]):
        at = in_places[pieces[p]] if in_places.shape[0] > 0 else pieces[p]
        for d in range(error.shape[0]):
            in_RD[at, d] += error[d]


@compiled()
def _place(away, window):
    """Return the index among 2 x window positions of a word at this offset from the middle."""
    return away + window if away < 0 else away + window - 1


@compiled(fastmath=FAST)
def _add_weighed(in_RD, word, starts, pieces, in_places, at, part, hidden):
    """Add a word's rows as `_add_rows_of` does, multiplied by the weights of its window position, row `at`. Write the
    unweighted sum to `part`."""
    part[:] = 0.0
    count = _add_rows_of(in_RD, word, starts, pieces, in_places, part)
    for d in range(hidden.shape[0]):
        hidden[d] += in_RD[at, d] * part[d]
    return count


@compiled(fastmath=FAST)
def _move_weighed(in_RD, word, starts, pieces, in_places, at, part, share, error, room):
    """Apply the update of a word that `_add_weighed` added, and of its window position.

    Rows of the word get the full error, as always in CBOW. The position weights get their gradient, scaled by the
    mean's `share`, because every window updates them.
    """
    for d in range(error.shape[0]):
        room[d] = in_RD[at, d] * error[d]
    _move_rows_of(in_RD, word, starts, pieces, in_places, room)
    for d in range(error.shape[0]):
        in_RD[at, d] += share * part[d] * error[d]


@compiled(fastmath=FAST)
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
    words,
    starts,
    pieces,
    positions,
    rate,
    sigmoid,
    logarithm,
    exact,
    in_places,
    out_places,
):
    """Train on the words of a sequence, position by position; return loss and number of predictions.

    - `negatives`: 0 means a softmax over `words`, or the Huffman tree if that is empty.
    - `starts` [V + 1], `pieces`: rows of each word and its subwords; empty: one row per word.
    - `positions`: for CBOW, first row of position weights; -1: none.
    - `in_places`, `out_places`: row -> index in partial tables of updated rows; empty: full tables.

    In skip-gram each context word predicts the middle word, as in word2vec's C code and gensim. With subwords the
    middle word predicts each context word, as in fastText.
    """
    width, count = in_RD.shape[1], kept.shape[0]
    placed, bags, weighed = in_places.shape[0] > 0, starts.shape[0] > 0, positions >= 0
    ahead, outward = negatives > 0, bags and not cbow
    questions = 2 * window if ahead and not cbow else 1
    rows = np.empty((questions, max(negatives + 1, points.shape[1], words.shape[0])), np.int64)
    labels, counts = np.empty(rows.shape, np.float32), np.empty(questions, np.int64)
    scores = np.empty(words.shape[0], np.float64)
    hidden, error = np.empty(width, np.float32), np.empty(width, np.float32)
    loss, asked = 0.0, 0
    parts, room = np.empty((2 * window if weighed else 0, width), np.float32), np.empty(width, np.float32)
    speed = np.float32(rate)
    for i in range(count):
        first, last, state = _window(borders, count, i, window, shrink, state)
        if last - first == 1:
            continue
        if ahead:
            drawn = accept, alias, out_RD, out_places, rows, labels, counts, state
            state = _noise_ahead(kept, i, first, 1 if cbow else last - first - 1, outward, negatives, *drawn)
        q = -1
        for j in range(first, last):
            # CBOW has one prediction per window, skip-gram one per context word.
            if (cbow and j != first) or (not cbow and j == i):
                continue
            q = q + 1 if ahead else 0
            if not ahead:
                answer = kept[j] if outward else kept[i]
                if words.shape[0] > 0:
                    counts[0] = _all(answer, words, rows[0], labels[0])
                else:
                    counts[0] = _path(answer, points, codes, rows[0], labels[0])
                if placed:
                    for t in range(counts[0]):
                        rows[0, t] = out_places[rows[0, t]]
            answers, right, n = rows[q], labels[q], counts[q]
            error[:] = 0.0
            asked += 1
            if not cbow and not bags:
                at = in_places[kept[j]] if placed else kept[j]
                if words.shape[0] > 0:
                    loss += _ask_all(in_RD[at], out_RD, answers, right, n, speed, scores, error)
                else:
                    loss += _ask(in_RD[at], out_RD, answers, right, n, speed, sigmoid, logarithm, exact, error)
                for d in range(width):
                    in_RD[at, d] += error[d]
                continue
            hidden[:] = 0.0
            summed = 0
            for k in range(first if cbow else i, last if cbow else i + 1):
                if cbow and k == i:
                    continue
                if weighed:
                    p = _place(k - i, window)
                    at = in_places[positions + p] if placed else positions + p
                    summed += _add_weighed(in_RD, kept[k], starts, pieces, in_places, at, parts[p], hidden)
                else:
                    summed += _add_rows_of(in_RD, kept[k], starts, pieces, in_places, hidden)
            share = np.float32(1.0 / summed)
            for d in range(width):
                hidden[d] *= share
            if words.shape[0] > 0:
                loss += _ask_all(hidden, out_RD, answers, right, n, speed, scores, error)
            else:
                loss += _ask(hidden, out_RD, answers, right, n, speed, sigmoid, logarithm, exact, error)
            for k in range(first if cbow else i, last if cbow else i + 1):
                if cbow and k == i:
                    continue
                if weighed:
                    p = _place(k - i, window)
                    at = in_places[positions + p] if placed else positions + p
                    _move_weighed(in_RD, kept[k], starts, pieces, in_places, at, parts[p], share, error, room)
                else:
                    _move_rows_of(in_RD, kept[k], starts, pieces, in_places, error)
    return loss, asked


@compiled()
def touch(
    cbow,
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
    words,
    starts,
    pieces,
    positions,
    in_moves,
    out_moves,
):
    """Count how often `learn` will update each row, int64 [rows] of either table, with the same random values."""
    count, bags = kept.shape[0], starts.shape[0] > 0
    rows = np.empty(max(negatives + 1, points.shape[1], words.shape[0]), np.int64)
    labels = np.empty(rows.shape[0], np.float32)
    for i in range(count):
        first, last, state = _window(borders, count, i, window, shrink, state)
        if last - first == 1:
            continue
        for j in range(first, last):
            if (cbow and j != first) or (not cbow and j == i):
                continue
            answer = kept[j] if bags and not cbow else kept[i]
            if negatives > 0:
                n, state = _noise(answer, negatives, accept, alias, rows, labels, state)
            elif words.shape[0] > 0:
                n = _all(answer, words, rows, labels)
            else:
                n = _path(answer, points, codes, rows, labels)
            for t in range(n):
                out_moves[rows[t]] += 1
        middle = bags and not cbow
        times = last - first - 1 if middle else 1
        for k in range(i if middle else first, i + 1 if middle else last):
            if k == i and not middle:
                continue
            if positions >= 0:
                in_moves[positions + _place(k - i, window)] += 1
            if bags:
                for p in range(starts[kept[k]], starts[kept[k] + 1]):
                    in_moves[pieces[p]] += times
            else:
                in_moves[kept[k]] += 1


@compiled()
def add_rows(table_RD, rows, moves, changes_UD, rate):
    """Add changes to rows one after the other; several changes of one row are scaled down.

    `moves` [U]: number of updates in each change. A few small changes can be summed. If each change alone converged,
    their sum would overshoot and grow from step to step; then their mean is right.

    Each of m changes is scaled by 1 / (1 + (m - 1) s). s is the rate times the mean number of updates per change, at
    most 1.
    """
    times, made = np.zeros(table_RD.shape[0], np.int64), np.zeros(table_RD.shape[0], np.int64)
    for u in range(rows.shape[0]):
        times[rows[u]] += 1
        made[rows[u]] += moves[u]
    for u in range(rows.shape[0]):
        row = rows[u]
        done = min(1.0, rate * made[row] / times[row])
        share = np.float32(1.0 / (1.0 + (times[row] - 1) * done))
        for d in range(table_RD.shape[1]):
            table_RD[row, d] += share * changes_UD[u, d]
