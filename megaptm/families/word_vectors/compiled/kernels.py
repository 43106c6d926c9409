"""Inner loops of word vectors, compiled by numba; they process words in the same order as word2vec's C code.

Letters: V words, D width, N labels of a prediction. All random values follow from one seed
per sequence, so the rows that a sequence will update can be found in advance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from megaptm.families.word_vectors.compiled.decorator import compiled

SCORE_LIMIT = 6.0
"""Absolute score beyond which the loops of word vectors make no update, as in the released code and gensim."""
TABLE_SIZE = 1000
TABLE_SCALE = int(TABLE_SIZE / SCORE_LIMIT / 2)
"""Scale from a score to an index of the sigmoid table: 83, because both implementations truncate it, and so never read
the ends of the table."""

# Allows sums in another order, for vectorization; NaN and infinities keep their meaning.
FAST = {"reassoc", "contract", "nsz"}


class WindowTask(NamedTuple):
    """Windows, labels and subwords of an objective, for the compiled loops."""

    cbow: bool
    window: int
    shrink: bool
    negatives: int
    """Number of negative samples per prediction; 0: a softmax over `softmax_words`, or the Huffman tree if that is
    empty."""
    accept: np.ndarray
    alias: np.ndarray
    points: np.ndarray
    codes: np.ndarray
    softmax_words: np.ndarray
    """Words of the softmax over the full vocabulary, see `WordTables`, which has these five tables."""
    starts: np.ndarray
    """Start of each word's rows in `pieces`, int64 [V + 1]; empty: one row per word."""
    pieces: np.ndarray
    """Rows of each word and its subwords, int64."""


def sigmoid_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return tables of the sigmoid for word vectors, float32 [1000] twice: its value at the lower end of each interval
    of ±6, and the logarithm."""
    scores = (np.arange(TABLE_SIZE) / TABLE_SIZE * 2 - 1) * SCORE_LIMIT
    return (1 / (1 + np.exp(-scores))).astype(np.float32), -np.log1p(np.exp(-scores)).astype(np.float32)


@compiled()
def _next_random(state):
    """Return the next state of the random generator and 64 random bits (splitmix64)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    mixed = state
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, mixed ^ (mixed >> np.uint64(31))


@compiled()
def fill_uniform(table_RD, row_ids, seed, bound):
    """Fill rows of a word vector table with U(-bound, bound), a function of the seed and of each row's index in the
    full table, `row_ids[r]`."""
    for r in range(table_RD.shape[0]):
        state = np.uint64(seed) ^ (np.uint64(row_ids[r] + 1) * np.uint64(0xD1342543DE82EF95))
        for d in range(table_RD.shape[1]):
            state, bits = _next_random(state)
            table_RD[r, d] = ((bits >> np.uint64(40)) / 8388608.0 - 1.0) * bound


@compiled()
def subsample(tokens, document_ids, thresholds, seed, words, documents):
    """Subsample frequent words, as word2vec does: write the words of a sequence that survive, and their documents;
    return their number and the next state.

    A word survives if 32 random bits are below its threshold. Words that never survive use no random bits.
    """
    state, count = np.uint64(seed), 0
    for t in range(tokens.shape[0]):
        threshold = thresholds[tokens[t]]
        if threshold == 0:
            continue
        if threshold < np.uint64(1 << 32):
            state, bits = _next_random(state)
            if (bits >> np.uint64(32)) >= threshold:
                continue
        words[count], documents[count] = tokens[t], document_ids[t]
        count += 1
    return count, state


@compiled()
def _sample_window(documents, i, window, shrink, state):
    """Sample the window around position i: return its first and last + 1 position, limited to the document, and the
    next state."""
    reach = window
    if shrink:
        state, bits = _next_random(state)
        reach = 1 + np.int64((bits >> np.uint64(32)) * np.uint64(window) >> np.uint64(32))
    first, last = i, i + 1
    while first > 0 and first > i - reach and documents[first - 1] == documents[i]:
        first -= 1
    while last < documents.shape[0] and last <= i + reach and documents[last] == documents[i]:
        last += 1
    return first, last, state


@compiled()
def _sample_noise(word, negatives, accept, alias, rows, labels, state):
    """Sample noise words: write the word and its negative samples (alias method) to `rows`; a sample equal to the word
    is dropped, as in the C code."""
    rows[0], labels[0], n = word, 1.0, 1
    size = np.uint64(accept.shape[0])
    for _ in range(negatives):
        state, bits = _next_random(state)
        sample = np.int64((bits >> np.uint64(32)) * size >> np.uint64(32))
        # A product instead of a branch: the outcome is unpredictable, and a misprediction costs as much as ten samples.
        sample += (np.int64(alias[sample]) - sample) * np.int64((bits & np.uint64(0xFFFFFFFF)) >= accept[sample])
        if sample != word:
            rows[n], labels[n] = sample, 0.0
            n += 1
    return n, state


@compiled()
def _write_labels(task, word, rows, labels):
    """Write the output rows that predict a word without negative samples, and their labels. Return their number.

    Rows are all words of the softmax, or the inner nodes from the root of the Huffman tree to the word; there label 1
    stands for turn 0.
    """
    n = 0
    if task.softmax_words.shape[0] > 0:
        for t in range(task.softmax_words.shape[0]):
            rows[t], labels[t] = task.softmax_words[t], 1.0 if task.softmax_words[t] == word else 0.0
        return task.softmax_words.shape[0]
    while n < task.points.shape[1] and task.points[word, n] >= 0:
        rows[n], labels[n] = task.points[word, n], 1.0 - task.codes[word, n]
        n += 1
    return n


@compiled(fastmath=FAST)
def _train_softmax(hidden, out_RD, rows, labels, n, rate, scores, error):
    """Train one prediction by a softmax over rows from a hidden vector; update all rows at once and add the hidden
    vector's update to `error`. Return the loss. `scores`: scratch space for a value per row."""
    largest, label_score = np.float32(-np.inf), np.float32(0.0)
    for t in range(n):
        score = np.float32(0.0)
        for d in range(hidden.shape[0]):
            score += hidden[d] * out_RD[rows[t], d]
        scores[t] = score
        if score > largest:
            largest = score
        if labels[t] == 1.0:
            label_score = score
    total = 0.0
    for t in range(n):
        scores[t] = math.exp(scores[t] - largest)
        total += scores[t]
    for t in range(n):
        update = np.float32((labels[t] - scores[t] / total) * rate)
        for d in range(hidden.shape[0]):
            error[d] += update * out_RD[rows[t], d]
        for d in range(hidden.shape[0]):
            out_RD[rows[t], d] += update * hidden[d]
    return math.log(total) + largest - label_score


@compiled(fastmath=FAST)
def _train_binary(hidden, out_RD, rows, labels, n, rate, sigmoid, log_sigmoid, exact, error):
    """Train binary predictions from a hidden vector, one label after the other, each updating its row; add the hidden
    vector's update to `error`. Return the loss: minus the sum of log probabilities of the labels."""
    loss = 0.0
    for t in range(n):
        row = rows[t]
        score = np.float32(0.0)
        for d in range(hidden.shape[0]):
            score += hidden[d] * out_RD[row, d]
        if exact:
            probability = np.float32(1.0 / (1.0 + math.exp(-score)))
            signed = float(score if labels[t] == 1.0 else -score)
            loss += math.log1p(math.exp(-abs(signed))) - min(signed, 0.0)
        elif score >= SCORE_LIMIT or score <= -SCORE_LIMIT:
            loss -= min(float(score if labels[t] == 1.0 else -score), 0.0)
            continue
        elif score != score:
            return np.nan
        else:
            entry = int((score + np.float32(SCORE_LIMIT)) * np.float32(TABLE_SCALE))
            probability = sigmoid[entry]
            # log(1 - s(x)) = log s(x) - x
            loss -= float(log_sigmoid[entry] if labels[t] == 1.0 else log_sigmoid[entry] - score)
        update = (labels[t] - probability) * rate
        for d in range(hidden.shape[0]):
            old = out_RD[row, d]
            error[d] += update * old
            out_RD[row, d] = old + update * hidden[d]
    return loss


@compiled(fastmath=FAST)
def _add_word_rows(in_RD, word, starts, pieces, in_index, hidden):
    """Add the rows of a word and its subwords to a hidden vector; return their number."""
    if starts.shape[0] == 0:
        row = in_index[word] if in_index.shape[0] > 0 else word
        for d in range(hidden.shape[0]):
            hidden[d] += in_RD[row, d]
        return 1
    for p in range(starts[word], starts[word + 1]):
        row = in_index[pieces[p]] if in_index.shape[0] > 0 else pieces[p]
        for d in range(hidden.shape[0]):
            hidden[d] += in_RD[row, d]
    return starts[word + 1] - starts[word]


@compiled(fastmath=FAST)
def _update_word_rows(in_RD, word, starts, pieces, in_index, error):
    """Add the update of a hidden vector to the rows of a word and its subwords. The vector is their mean."""
    if starts.shape[0] == 0:
        row = in_index[word] if in_index.shape[0] > 0 else word
        for d in range(error.shape[0]):
            in_RD[row, d] += error[d]
        return
    for p in range(starts[word], starts[word + 1]):
        row = in_index[pieces[p]] if in_index.shape[0] > 0 else pieces[p]
        for d in range(error.shape[0]):
            in_RD[row, d] += error[d]


@compiled(fastmath=FAST)
def train_words(task, in_RD, out_RD, words, documents, state, rate, sigmoid, log_sigmoid, exact, in_index, out_index):
    """Train word vectors on the words of a sequence, position by position; return loss and number of predictions.

    - `exact`: compute sigmoids instead of reading the tables.
    - `in_index`, `out_index`: row -> index in partial tables of updated rows; empty: full tables.

    In skip-gram each context word predicts the middle word, as in word2vec's C code and gensim. With subwords the
    middle word predicts each context word, as in fastText.
    """
    cbow, starts, pieces = task.cbow, task.starts, task.pieces
    width, partial, has_subwords = in_RD.shape[1], in_index.shape[0] > 0, starts.shape[0] > 0
    max_labels = max(task.negatives + 1, task.points.shape[1], task.softmax_words.shape[0])
    rows, labels = np.empty(max_labels, np.int64), np.empty(max_labels, np.float32)
    scores = np.empty(task.softmax_words.shape[0], np.float64)
    hidden, error = np.empty(width, np.float32), np.empty(width, np.float32)
    loss, predictions, rate32 = 0.0, 0, np.float32(rate)
    for i in range(words.shape[0]):
        first, last, state = _sample_window(documents, i, task.window, task.shrink, state)
        if last - first == 1:
            continue
        for j in range(first, last):
            # CBOW has one prediction per window, skip-gram one per context word.
            if (cbow and j != first) or (not cbow and j == i):
                continue
            label = words[j] if has_subwords and not cbow else words[i]
            if task.negatives > 0:
                n, state = _sample_noise(label, task.negatives, task.accept, task.alias, rows, labels, state)
            else:
                n = _write_labels(task, label, rows, labels)
            if partial:
                for t in range(n):
                    rows[t] = out_index[rows[t]]
            error[:] = 0.0
            predictions += 1
            if not cbow and not has_subwords:
                row = in_index[words[j]] if partial else words[j]
                if scores.shape[0] > 0:
                    loss += _train_softmax(in_RD[row], out_RD, rows, labels, n, rate32, scores, error)
                else:
                    loss += _train_binary(
                        in_RD[row], out_RD, rows, labels, n, rate32, sigmoid, log_sigmoid, exact, error
                    )
                for d in range(width):
                    in_RD[row, d] += error[d]
                continue
            hidden[:] = 0.0
            num_rows = 0
            for k in range(first if cbow else i, last if cbow else i + 1):
                if not (cbow and k == i):
                    num_rows += _add_word_rows(in_RD, words[k], starts, pieces, in_index, hidden)
            share = np.float32(1.0 / num_rows)
            for d in range(width):
                hidden[d] *= share
            if scores.shape[0] > 0:
                loss += _train_softmax(hidden, out_RD, rows, labels, n, rate32, scores, error)
            else:
                loss += _train_binary(hidden, out_RD, rows, labels, n, rate32, sigmoid, log_sigmoid, exact, error)
            for k in range(first if cbow else i, last if cbow else i + 1):
                if not (cbow and k == i):
                    _update_word_rows(in_RD, words[k], starts, pieces, in_index, error)
    return loss, predictions


@compiled()
def count_updates(task, words, documents, state, in_counts, out_counts):
    """Count how often `train_words` will update each row of a word vector table, int64 [rows] of either table, with the
    same random values."""
    has_subwords = task.starts.shape[0] > 0
    rows = np.empty(max(task.negatives + 1, task.points.shape[1], task.softmax_words.shape[0]), np.int64)
    labels = np.empty(rows.shape[0], np.float32)
    for i in range(words.shape[0]):
        first, last, state = _sample_window(documents, i, task.window, task.shrink, state)
        if last - first == 1:
            continue
        for j in range(first, last):
            if (task.cbow and j != first) or (not task.cbow and j == i):
                continue
            label = words[j] if has_subwords and not task.cbow else words[i]
            if task.negatives > 0:
                n, state = _sample_noise(label, task.negatives, task.accept, task.alias, rows, labels, state)
            else:
                n = _write_labels(task, label, rows, labels)
            for t in range(n):
                out_counts[rows[t]] += 1
        from_middle = has_subwords and not task.cbow
        times = last - first - 1 if from_middle else 1
        for k in range(i if from_middle else first, i + 1 if from_middle else last):
            if k == i and not from_middle:
                continue
            if has_subwords:
                for p in range(task.starts[words[k]], task.starts[words[k] + 1]):
                    in_counts[task.pieces[p]] += times
            else:
                in_counts[words[k]] += 1


@compiled()
def add_rows(table_RD, rows, num_updates, changes_UD, rate):
    """Add changes to rows of a word vector table one after the other; several changes of one row are scaled down.

    `num_updates` [U]: number of updates in each change. A few small changes can be summed. If each change alone
    converged, their sum would overshoot and grow from step to step; then their mean is right.

    Each of m changes is scaled by 1 / (1 + (m - 1) s). s is the rate times the mean number of updates per change, at
    most 1.
    """
    changes_of_row, updates_of_row = np.zeros(table_RD.shape[0], np.int64), np.zeros(table_RD.shape[0], np.int64)
    for u in range(rows.shape[0]):
        changes_of_row[rows[u]] += 1
        updates_of_row[rows[u]] += num_updates[u]
    for u in range(rows.shape[0]):
        row = rows[u]
        converged = min(1.0, rate * updates_of_row[row] / changes_of_row[row])
        share = np.float32(1.0 / (1.0 + (changes_of_row[row] - 1) * converged))
        for d in range(table_RD.shape[1]):
            table_RD[row, d] += share * changes_UD[u, d]
