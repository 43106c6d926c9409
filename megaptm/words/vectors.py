"""Trained word vectors: what is near a word, and what is to a third as a second is to a first."""

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
"""Words, for one that is spelled like a word that has no vector."""


@dataclass(frozen=True, eq=False)
class WordPieces:
    """Rows of pieces of words."""

    ngrams: tuple[int, int]
    vectors: np.ndarray
    """float32 [buckets, D]"""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words, the most frequent first, with their vectors."""

    words: Sequence[str]
    counts: np.ndarray
    """int64 [N]: how often each came in the text."""
    vectors: np.ndarray
    """float32 [N, D]"""
    pieces: WordPieces | None = None
    """Of fastText: what words without a vector of their own are made of."""

    @cached_property
    def number(self) -> dict[str, int]:
        """Word -> its row."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> np.ndarray:
        """float32 [N, D]: the vectors, each of length 1; those of zeros stay so."""
        return self.vectors / np.maximum(np.linalg.norm(self.vectors, axis=1, keepdims=True), 1e-12)

    def vector(self, word: str) -> np.ndarray:
        """float32 [D]; of a word that has none the mean of its pieces', where there are such; else a `UserError`."""
        if word not in self.number and self.pieces is not None:
            _, buckets = pieces_of([word], self.pieces.ngrams, len(self.pieces.vectors))
            if len(buckets):
                return self.pieces.vectors[buckets].mean(axis=0)
        return self.vectors[self._row(word)]

    def nearest(self, word: str, number: int = 10) -> list[tuple[str, float]]:
        """The words whose directions are nearest to a word's, with the cosine between them."""
        return self._near(_direction(self.vector(word)), [word], number)

    def analogy(self, first: str, second: str, third: str, number: int = 1) -> list[tuple[str, float]]:
        """What is to `third` as `second` is to `first`: near to second - first + third (arXiv:1301.3781, section 4)."""
        one, two, three = (_direction(self.vector(word)) for word in (first, second, third))
        return self._near(_direction(two - one + three), [first, second, third], number)

    def accuracy(self, questions: Iterable[tuple[str, str, str, str]]) -> tuple[int, int]:
        """How many analogies of four words are answered by their fourth, and how many are of words that are known."""
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
    """Analogies, four words a line; lines that begin with `:` are headings, as in questions-words.txt."""
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
    """The word vectors of a run; `step` is the checkpoint to take, the newest by default."""
    return vectors_of(open_checkpoint(run, step=step))


def vectors_of(checkpoint: RunCheckpoint) -> WordVectors:
    """Of the words that took part in its training; of GloVe the sum of what each is as a word and as a context, as
    published (section 4.2)."""
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
    # Over the very rows that a word has there: those of all words come first.
    starts, pieces = pieces_of(words, spec.size.ngrams, spec.size.buckets)
    rows, behind = table[ids], table[spec.vocabulary :]
    sums = np.add.reduceat(np.vstack([behind[pieces], np.zeros((1, rows.shape[1]))]), starts[:-1])
    sums[np.diff(starts) == 0] = 0.0
    means = (rows + sums) / (1 + np.diff(starts))[:, None]
    return WordVectors(words, counts[ids], means.astype(np.float32), WordPieces(spec.size.ngrams, behind))


def whole_table(checkpoint: RunCheckpoint, name: str) -> np.ndarray:
    """float32 [V, D]: a table of a checkpoint as rows, whoever held them; of GloVe with what else a row has."""
    table = checkpoint.weights()[name].numpy()
    spec = word_spec_of(checkpoint)
    rows = spec.vocabulary + (spec.size.buckets if name == "input" else 0)
    return table.reshape(-1, table.shape[-1])[:rows]


def word_spec_of(checkpoint: RunCheckpoint) -> WordSpec:
    """A `UserError` where a run is not one of word vectors."""
    spec = resolve(checkpoint.config)
    if not isinstance(spec, WordSpec):
        raise UserError(
            f"{checkpoint.run} is a run of {spec.name}, which has no table of word vectors: use `megaptm export "
            "hf`, or `megaptm.load`."
        )
    return spec
