"""Trained word vectors: nearest words and analogies."""

# N words, D width

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from megaptm.config import resolve
from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.objectives.pairs import GloVe
from megaptm.objectives.windows import WordWindows
from megaptm.run.checkpoint import RunCheckpoint, open_checkpoint
from megaptm.suggest import suggest
from megaptm.tokenizers import load as load_tokenizer
from megaptm.words.subwords import pieces_of
from megaptm.words.vocabulary import read_counts, words_of

LOOKED_THROUGH = 20_000
"""Words to search for a spelling suggestion when a word has no vector."""


@dataclass(frozen=True, eq=False)
class WordPieces:
    """Rows of subwords."""

    ngrams: tuple[int, int]
    vectors: np.ndarray
    """float32 [buckets, D]"""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words, most frequent first, and their vectors."""

    words: Sequence[str]
    counts: np.ndarray
    """int64 [N]: frequency of each word in the text."""
    vectors: np.ndarray
    """float32 [N, D]"""
    pieces: WordPieces | None = None
    """Subwords (fastText), for words without a vector of their own."""

    @cached_property
    def number(self) -> dict[str, int]:
        """Word -> row."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> np.ndarray:
        """float32 [N, D]: vectors normalized to length 1; zero vectors stay zero."""
        return self.vectors / np.maximum(np.linalg.norm(self.vectors, axis=1, keepdims=True), 1e-12)

    def vector(self, word: str) -> np.ndarray:
        """Return float32 [D]; for an unknown word the mean of its subwords' vectors. Raise UserError if there are
        none."""
        if word not in self.number and self.pieces is not None:
            _, buckets = pieces_of([word], self.pieces.ngrams, len(self.pieces.vectors))
            if len(buckets):
                return self.pieces.vectors[buckets].mean(axis=0)
        return self.vectors[self._row(word)]

    def nearest(self, word: str, number: int = 10) -> list[tuple[str, float]]:
        """Return the words with the most similar vectors, with their cosine similarity."""
        return self._near(_direction(self.vector(word)), [word], number)

    def analogy(self, first: str, second: str, third: str, number: int = 1) -> list[tuple[str, float]]:
        """Return the words nearest to second - first + third (arXiv:1301.3781, section 4)."""
        one, two, three = (_direction(self.vector(word)) for word in (first, second, third))
        return self._near(_direction(two - one + three), [first, second, third], number)

    def accuracy(self, questions: Iterable[tuple[str, str, str, str]]) -> tuple[int, int]:
        """Return how many analogies of four words are solved, and how many have only known words."""
        known = [question for question in questions if all(word in self.number for word in question)]
        right = sum(fourth in dict(self.analogy(one, two, three)) for one, two, three, fourth in known)
        return right, len(known)

    def _row(self, word: str) -> int:
        if word not in self.number:
            meant = suggest(word, self.words[:LOOKED_THROUGH])
            remedy = f"did you mean {meant}?" if meant else "choose another."
            raise UserError(f"{word} is none of the {len(self.words):,} words that have a vector; {remedy}")
        return self.number[word]

    def _near(self, direction: np.ndarray, left_out: Sequence[str], number: int) -> list[tuple[str, float]]:
        cosines = self.directions @ direction
        known = {self.number[word] for word in left_out if word in self.number}
        cosines[[*known]] = -np.inf
        number = min(number, len(cosines) - len(known))
        if number < 1:
            return []
        best = np.argpartition(-cosines, range(number))[:number].tolist()
        return [(self.words[row], float(cosines[row])) for row in best]


def _direction(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def read_questions(path: Path) -> list[tuple[str, str, str, str]]:
    """Read analogies, four words per line; lines that start with `:` are headings, as in questions-words.txt."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}): name a file of analogies.") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith(":"):
            continue
        if len(words) != 4:
            raise UserError(f"{path}, line {number}: an analogy is four words, not {len(words)}: correct it.")
        found.append((words[0], words[1], words[2], words[3]))
    if not found:
        raise UserError(f"{path} holds no analogy: write four words a line.")
    return found


def load_words(run: str | Path, *, step: int | None = None) -> WordVectors:
    """Load the word vectors of a run; `step`: the checkpoint, by default the newest."""
    return vectors_of(open_checkpoint(run, step=step))


def vectors_of(checkpoint: RunCheckpoint) -> WordVectors:
    """Return the vectors of the words that took part in training. For GloVe, the sum of word and context vectors
    (section 4.2 of the paper)."""
    spec = word_spec_of(checkpoint)
    task = checkpoint.config.built_objective
    tokenizer, counts = load_tokenizer(checkpoint.tokenizer), read_counts(checkpoint.checkpoint.reader, spec.vocabulary)
    least = task.min_count if isinstance(task, WordWindows | GloVe) else 1
    ids = words_of(counts, tokenizer.special.specials, least)
    words = [tokenizer.name(id_) for id_ in ids.tolist()]
    if isinstance(task, GloVe):
        both = (whole_table(checkpoint, name)[ids, : spec.size.width] for name in ("word", "context"))
        return WordVectors(words, counts[ids], sum(both, np.zeros(spec.size.width, np.float32)))
    if spec.family.network:
        return WordVectors(words, counts[ids], checkpoint.weights()["vectors"].numpy()[ids])
    table = whole_table(checkpoint, "input")
    if not spec.size.buckets:
        return WordVectors(words, counts[ids], table[ids])
    # Uses the word's own rows; rows of all words come before those of subwords.
    starts, pieces = pieces_of(words, spec.size.ngrams, spec.size.buckets)
    rows, behind = table[ids], table[spec.vocabulary :]
    sums = np.add.reduceat(np.vstack([behind[pieces], np.zeros((1, rows.shape[1]))]), starts[:-1])
    sums[np.diff(starts) == 0] = 0.0
    means = (rows + sums) / (1 + np.diff(starts))[:, None]
    return WordVectors(words, counts[ids], means.astype(np.float32), WordPieces(spec.size.ngrams, behind))


def whole_table(checkpoint: RunCheckpoint, name: str) -> np.ndarray:
    """Return float32 [V, D]: a table of a checkpoint in row order, for any number of ranks. GloVe's rows include
    AdaGrad sums."""
    table = checkpoint.weights()[name].numpy()
    spec = word_spec_of(checkpoint)
    rows = spec.vocabulary + (spec.size.buckets if name == "input" else 0)
    return table.reshape(-1, table.shape[-1])[:rows]


def word_spec_of(checkpoint: RunCheckpoint) -> WordSpec:
    """Return the spec of a run of word vectors. Raise UserError for other runs."""
    spec = resolve(checkpoint.config)
    if not isinstance(spec, WordSpec):
        raise UserError(
            f"{checkpoint.run} is a run of {spec.name}, which has no table of word vectors: use `megaptm export "
            "hf`, or `megaptm.load`."
        )
    return spec
