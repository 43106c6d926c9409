"""Statistics of a corpus for word vectors: word frequencies, and the tables derived from them."""

# V words, P length of the longest path in a Huffman tree

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.errors import UserError
from megaptm.families.word_vectors import WordSpec
from megaptm.families.word_vectors.glove import GloVe
from megaptm.families.word_vectors.windows import HUFFMAN, SOFTMAX, WordWindows

COUNTS = "counts"
"""Checkpoint tensor with the frequency of each word in the corpus."""

ALWAYS = 1 << 32


def counts_piece(counts: np.ndarray) -> TensorPiece:
    """Return the checkpoint piece of the word counts of word vectors, which one rank writes."""
    return TensorPiece(COUNTS, counts.shape, (0,), counts.shape, torch.from_numpy(counts))


def read_counts(reader: TensorReader, vocabulary: int) -> np.ndarray:
    """Read the frequency of each word from a checkpoint, int64 [V]. Raise UserError if they are invalid: compiled code
    uses derived tables as unchecked indices."""
    tensor = reader.read(COUNTS)
    if tensor.dtype != torch.int64 or tuple(tensor.shape) != (vocabulary,) or bool((tensor < 0).any()):
        raise UserError(
            f"{reader.folder}: {COUNTS} must hold {vocabulary:,} word counts, integers from 0: use another checkpoint."
        )
    counts: np.ndarray = tensor.numpy()
    return counts


@dataclass(frozen=True)
class WordTables:
    """Tables derived from word frequencies for the compiled code, besides vectors."""

    thresholds: np.ndarray
    """Thresholds of subsampling, uint64 [V]: a word is kept if 32 random bits are below it; 0: never, 2^32: always."""
    accept: np.ndarray
    """Alias table of the noise distribution, uint32 [V] and int32 [V] (`alias`); empty without noise."""
    alias: np.ndarray
    points: np.ndarray
    """Inner nodes from the root of the Huffman tree to each word, int64 [V, P], padded with -1; P is 0 without a
    tree."""
    codes: np.ndarray
    """Huffman code of each word, float32 [V, P]: the branch taken at each of its inner nodes."""
    softmax_words: np.ndarray
    """Words of the softmax, int64 [N]; empty without a softmax."""


def word_tables(counts: np.ndarray, special: Sequence[int], task: WordWindows) -> WordTables:
    """Return the tables of an objective of word vectors. `special` ids, and words with fewer than `min_count`
    occurrences, do not take part."""
    counted = counts.astype(np.int64).copy()
    counted[[*special]] = 0
    counted[counted < task.min_count] = 0
    tree = task.output == HUFFMAN
    points, codes = huffman_code(counted) if tree else (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32))
    noise = np.where(counted > 0, counted.astype(np.float64) ** task.noise_power, 0.0)
    accept, alias = alias_table(noise if task.output not in (HUFFMAN, SOFTMAX) else np.zeros(0))
    words = np.flatnonzero(counted) if task.output == SOFTMAX else np.zeros(0, np.int64)
    return WordTables(subsampling_thresholds(counted, task.subsample), accept, alias, points, codes, words)


def frequent_words(counts: np.ndarray, special: Iterable[int], min_count: int) -> np.ndarray:
    """Return the ids of words with at least `min_count` occurrences, most frequent first, int64 [N]."""
    often = counts.copy()
    often[sorted(special)] = 0
    order = np.argsort(-often, kind="stable")
    return order[often[order] >= min_count]


def encode_word(word: str) -> bytes:
    """Return a word in UTF-8 for a file of word vectors. Raise UserError if it contains a separator of files of word
    vectors: spaces, line ends, zero bytes."""
    if not word or re.search(r"[\s\0]", word):
        raise UserError(
            f"the word {word!r} contains a separator of this file format: use --format safetensors, or a tokenizer of "
            "kind words."
        )
    return word.encode()


def words_to_learn(spec: WordSpec, counts: np.ndarray, special: Iterable[int], task: WordWindows | GloVe) -> np.ndarray:
    """Return the words that word vectors are learned for, `frequent_words` as int64 [N]. Raise UserError if there are
    fewer than two."""
    words = frequent_words(counts, special, task.min_count)
    if len(words) < 2:
        raise UserError(
            f"{spec.name} needs at least two words. In the corpora, {len(words)} occur {task.min_count:,} times or "
            f"more: lower min_count of {task.name}, or use more text."
        )
    return words


def subsampling_thresholds(counts: np.ndarray, subsample: float) -> np.ndarray:
    """Return word2vec's thresholds of subsampling, uint64 [V]: probabilities of keeping a word of relative frequency f,
    (sqrt(f / t) + 1) t / f, in units of 2^-32.

    This is the formula of the released code; the paper has sqrt(t / f).
    """
    if not subsample:
        return np.where(counts > 0, ALWAYS, 0).astype(np.uint64)
    share = counts / max(1, counts.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        probability = np.where(counts > 0, (np.sqrt(share / subsample) + 1) * subsample / share, 0.0)
    return np.rint(np.minimum(probability, 1.0) * ALWAYS).astype(np.uint64)


def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the alias table of word2vec's noise distribution, uint32 [V] and int32 [V]: sample an index uniformly;
    keep it if 32 bits are below the first table, else take the second.

    Walker's method with Vose's construction: sampling takes constant time.
    """
    size = len(weights)
    accept, alias = np.full(size, ALWAYS - 1, np.uint32), np.arange(size, dtype=np.int32)
    if not size:
        return accept, alias
    scaled = (weights / weights.sum() * size).tolist()
    small = [index for index, mass in enumerate(scaled) if mass < 1.0]
    large = [index for index, mass in enumerate(scaled) if mass >= 1.0]
    while small and large:
        index, giver = small.pop(), large[-1]
        accept[index], alias[index] = min(ALWAYS - 1, int(scaled[index] * ALWAYS)), giver
        scaled[giver] -= 1.0 - scaled[index]
        if scaled[giver] < 1.0:
            small.append(large.pop())
    return accept, alias


@dataclass(slots=True)
class _Node:
    count: int
    index: int

    def __lt__(self, other: _Node) -> bool:
        # Compares only counts: gensim leaves the order of ties to its heap, and codes must be equal.
        return self.count < other.count


def huffman_code(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Huffman code of each word for hierarchical softmax (word2vec), int64 and float32 [V, P]: its path from
    the root, and its turns.

    Nodes are numbered in the order of their creation, rarest first; of two nodes the rarer one is turns 0.
    """
    words = np.flatnonzero(counts)
    heap = [_Node(count, index) for index, count in enumerate(counts[words].tolist())]
    heapq.heapify(heap)
    parents = np.full(2 * len(words), -1, np.int64)
    turns = np.zeros(2 * len(words), np.float32)
    for node in range(len(words), 2 * len(words) - 1):
        rarer, other = heapq.heappop(heap), heapq.heappop(heap)
        parents[[rarer.index, other.index]] = node
        turns[other.index] = 1.0
        heapq.heappush(heap, _Node(rarer.count + other.count, node))
    paths: list[list[int]] = []
    for leaf in range(len(words)):
        path, node = [], leaf
        while parents[node] >= 0:
            path.append(node)
            node = int(parents[node])
        paths.append(path[::-1])
    depth = max(map(len, paths), default=0)
    points, codes = np.full((len(counts), depth), -1, np.int64), np.zeros((len(counts), depth), np.float32)
    for word, path in zip(words, paths, strict=True):
        points[word, : len(path)] = parents[path] - len(words)
        codes[word, : len(path)] = turns[path]
    return points, codes
