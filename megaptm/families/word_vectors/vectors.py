"""Trained word vectors: nearest words and analogies."""

# N words, D width

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from megaptm.config import resolve_spec
from megaptm.errors import UserError
from megaptm.families.word_vectors import WordSpec
from megaptm.families.word_vectors.glove import GloVe
from megaptm.families.word_vectors.subwords import subword_buckets
from megaptm.families.word_vectors.vocabulary import frequent_words, read_counts
from megaptm.families.word_vectors.windows import WordWindows
from megaptm.run.checkpoint import RunCheckpoint, open_checkpoint
from megaptm.storage import read_text_file
from megaptm.suggest import suggest_name
from megaptm.tokenizers import load_tokenizer

MAX_SEARCHED = 20_000
"""Number of words to search for a spelling suggestion when a word has no vector."""


@dataclass(frozen=True, eq=False)
class WordPieces:
    """Rows of subwords in trained word vectors."""

    ngrams: tuple[int, int]
    vectors: np.ndarray
    """Vectors of the subword buckets, float32 [buckets, D]."""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Trained word vectors and their words, most frequent first."""

    words: Sequence[str]
    counts: np.ndarray
    """Frequency of each word in the text, int64 [N]."""
    vectors: np.ndarray
    """Word vectors, float32 [N, D], in the order of `words`."""
    pieces: WordPieces | None = None
    """Subwords (fastText), for words without a vector of their own."""

    @cached_property
    def rows(self) -> dict[str, int]:
        """Return the row of each word in the word vectors."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> np.ndarray:
        """Return the word vectors normalized to length 1, float32 [N, D]; zero vectors stay zero."""
        return self.vectors / np.maximum(np.linalg.norm(self.vectors, axis=1, keepdims=True), 1e-12)

    def vector(self, word: str) -> np.ndarray:
        """Return the word vector of a word, float32 [D]; for an unknown word the mean of its subwords' vectors. Raise
        UserError if there are none."""
        if word not in self.rows and self.pieces is not None:
            _, buckets = subword_buckets([word], self.pieces.ngrams, len(self.pieces.vectors))
            if len(buckets):
                return self.pieces.vectors[buckets].mean(axis=0)
        return self.vectors[self._row_of_word(word)]

    def nearest(self, word: str, number: int = 10) -> list[tuple[str, float]]:
        """Return the words with the most similar word vectors, with their cosine similarity."""
        return self._nearest_words(_unit_vector(self.vector(word)), [word], number)

    def analogy(self, first: str, second: str, third: str, number: int = 1) -> list[tuple[str, float]]:
        """Solve an analogy by word vectors: return the words nearest to second - first + third (arXiv:1301.3781,
        section 4)."""
        a, b, c = (_unit_vector(self.vector(word)) for word in (first, second, third))
        return self._nearest_words(_unit_vector(b - a + c), [first, second, third], number)

    def count_solved_analogies(self, questions: Iterable[tuple[str, str, str, str]]) -> tuple[int, int]:
        """Return how many analogies of four words the word vectors solve, and how many have only known words."""
        known = [question for question in questions if all(word in self.rows for word in question)]
        solved = sum(fourth in dict(self.analogy(first, second, third)) for first, second, third, fourth in known)
        return solved, len(known)

    def _row_of_word(self, word: str) -> int:
        if word not in self.rows:
            suggestion = suggest_name(word, self.words[:MAX_SEARCHED])
            remedy = f"did you mean {suggestion}?" if suggestion else "choose another word."
            raise UserError(f"{word} is not one of the {len(self.words):,} words with a vector: {remedy}")
        return self.rows[word]

    def _nearest_words(self, direction: np.ndarray, excluded: Sequence[str], number: int) -> list[tuple[str, float]]:
        cosines = self.directions @ direction
        known = {self.rows[word] for word in excluded if word in self.rows}
        cosines[[*known]] = -np.inf
        number = min(number, len(cosines) - len(known))
        if number < 1:
            return []
        best = np.argpartition(-cosines, range(number))[:number].tolist()
        return [(self.words[row], float(cosines[row])) for row in best]


def _unit_vector(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def read_analogies(path: Path) -> list[tuple[str, str, str, str]]:
    """Read analogies for the evaluation of word vectors, four words per line; lines that start with `:` are headings,
    as in questions-words.txt."""
    questions = []
    for number, line in enumerate(read_text_file(path, remedy="use a file of analogies").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith(":"):
            continue
        if len(words) != 4:
            raise UserError(f"{path}, line {number}: an analogy is four words, not {len(words)}: correct it.")
        questions.append((words[0], words[1], words[2], words[3]))
    if not questions:
        raise UserError(f"{path} has no analogies: write four words per line.")
    return questions


def load_words(run: str | Path, *, step: int | None = None) -> WordVectors:
    """Load the word vectors of a run; `step`: the checkpoint, by default the newest."""
    return read_vectors(open_checkpoint(run, step=step))


def read_vectors(checkpoint: RunCheckpoint) -> WordVectors:
    """Return the vectors of the words that took part in training. For GloVe, the sum of word and context vectors
    (section 4.2 of the paper)."""
    spec = read_word_spec(checkpoint)
    task = checkpoint.config.built_objective
    tokenizer, counts = load_tokenizer(checkpoint.tokenizer), read_counts(checkpoint.checkpoint.reader, spec.vocabulary)
    min_count = task.min_count if isinstance(task, WordWindows | GloVe) else 1
    ids = frequent_words(counts, tokenizer.special.specials, min_count)
    words = [tokenizer.name(id_) for id_ in ids.tolist()]
    if isinstance(task, GloVe):
        both = (read_table(checkpoint, name)[ids, : spec.size.width] for name in ("word", "context"))
        return WordVectors(words, counts[ids], sum(both, np.zeros(spec.size.width, np.float32)))
    if spec.family.is_network:
        return WordVectors(words, counts[ids], checkpoint.weights()["vectors"].numpy()[ids])
    table = read_table(checkpoint, "input")
    if not spec.size.buckets:
        return WordVectors(words, counts[ids], table[ids])
    # Uses the word's own rows; rows of all words come before those of subwords.
    starts, pieces = subword_buckets(words, spec.size.ngrams, spec.size.buckets)
    rows, buckets = table[ids], table[spec.vocabulary :]
    sums = np.add.reduceat(np.vstack([buckets[pieces], np.zeros((1, rows.shape[1]))]), starts[:-1])
    sums[np.diff(starts) == 0] = 0.0
    means = (rows + sums) / (1 + np.diff(starts))[:, None]
    return WordVectors(words, counts[ids], means.astype(np.float32), WordPieces(spec.size.ngrams, buckets))


def read_table(checkpoint: RunCheckpoint, name: str) -> np.ndarray:
    """Read a table of word vectors from a checkpoint in row order, for any number of ranks, float32 [V, D]. GloVe's
    rows include AdaGrad sums."""
    table = checkpoint.weights()[name].numpy()
    spec = read_word_spec(checkpoint)
    rows = spec.vocabulary + (spec.size.buckets if name == "input" else 0)
    return table.reshape(-1, table.shape[-1])[:rows]


def read_word_spec(checkpoint: RunCheckpoint) -> WordSpec:
    """Return the spec of a run of word vectors. Raise UserError for other runs."""
    spec = resolve_spec(checkpoint.config)
    if not isinstance(spec, WordSpec):
        raise UserError(
            f"{checkpoint.run} is a run of {spec.name}, which has no word vectors: use `megaptm export hf` or "
            "`megaptm.load`."
        )
    return spec
