"""Rewriting of captions: paraphrases with the same meaning, and negatives that differ in a word or phrase (UNIMO,
arXiv:2012.15409, section 2.1).

Lists of phrases with equal meaning replace the paper's scene graph parser and back-translation: objects, attributes and
relations are found in these lists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from megaptm.errors import UserError, shown

Text = tuple[Hashable, ...]
"""Words in order: strings, or the token ids of each."""

KINDS = ("objects", "attributes", "relations")
"""Kinds of phrases. A phrase is only replaced by one of its kind."""
TRIES = 8
"""Number of samples per requested text."""


class Meaning(NamedTuple):
    """Meaning that some phrases share."""

    kind: str
    number: int
    """Index among the meanings of its kind."""


@dataclass(frozen=True)
class PhraseFound:
    """Phrase in a text."""

    first: int
    stop: int
    """Index of the word after the last."""
    meaning: Meaning


class Rewriter:
    """Replacement of phrases in a text.

    The result is parsed again: words that form another phrase with their neighbors, as `hot` before `dog`, must not
    change the meaning of a paraphrase.
    """

    def __init__(self, meanings: Mapping[str, Sequence[Sequence[Text]]]) -> None:
        """`meanings`: kind -> phrases of each meaning. Raises `UserError` if a phrase is empty or ambiguous."""
        self._said = {kind: [list(map(tuple, phrases)) for phrases in said] for kind, said in meanings.items()}
        self._meanings: dict[Text, Meaning] = {}
        for kind, said in self._said.items():
            if kind not in KINDS:
                raise UserError(f"rewriting: {shown(kind)} is no kind of phrases: use {', '.join(KINDS)}.")
            for number, phrases in enumerate(said):
                if not phrases:
                    raise UserError(f"rewriting: meaning {number} of the {kind} has no phrases: give some, or drop it.")
                for phrase in phrases:
                    if not phrase:
                        raise UserError(f"rewriting: a phrase of the {kind} has no words: leave it out.")
                    if phrase in self._meanings:
                        raise UserError(
                            f"rewriting: {shown(phrase)} is there twice, among the {self._meanings[phrase].kind} and "
                            f"the {kind}: a phrase has one meaning; leave one out."
                        )
                    self._meanings[phrase] = Meaning(kind, number)
        self._longest = max(map(len, self._meanings), default=0)

    def find(self, text: Text) -> list[PhraseFound]:
        """Return the phrases of a text from left to right, the longest at each position."""
        found, at = [], 0
        while at < len(text):
            for stop in range(min(at + self._longest, len(text)), at, -1):
                if (meaning := self._meanings.get(text[at:stop])) is not None:
                    found.append(PhraseFound(at, stop, meaning))
                    at = stop
                    break
            else:
                at += 1
        return found

    def said(self, text: Text) -> list[Hashable]:
        """Return the meaning of a text: meanings of its phrases, and all other words."""
        made: list[Hashable] = []
        at = 0
        for one in self.find(text):
            made += [*text[at : one.first], one.meaning]
            at = one.stop
        return [*made, *text[at:]]

    def kept(self, text: Text, rng: np.random.Generator, *, number: int = 1) -> list[Text]:
        """Return up to `number` different paraphrases: each phrase is replaced by a random one with the same
        meaning."""

        def draw() -> Text:
            found = self.find(text)
            return _replaced(text, {one: _drawn(self._phrases(one.meaning), rng) for one in found})

        return self._different(text, draw, lambda made: self.said(made) == self.said(text), number=number)

    def broken(self, text: Text, rng: np.random.Generator, *, number: int = 1, whole: bool = False) -> list[Text]:
        """Return up to `number` texts with another meaning: one phrase is replaced by another meaning of its kind.
        `whole`: an object and the attributes directly before it are all replaced."""
        groups = self._groups(text) if whole else [[one] for one in self.find(text)]
        groups = [group for group in groups if all(self._others(one.meaning) for one in group)]
        if not groups:
            return []

        def draw() -> Text:
            group = groups[rng.integers(len(groups))]
            return _replaced(text, {one: _drawn(self._phrases(self._other(one.meaning, rng)), rng) for one in group})

        return self._different(text, draw, lambda made: self._says_other(made, text), number=number)

    def _different(
        self, text: Text, draw: Callable[[], Text], right: Callable[[Text], bool], *, number: int
    ) -> list[Text]:
        made: list[Text] = []
        for _ in range(TRIES * number):
            if len(made) == number:
                break
            if (one := draw()) != text and one not in made and right(one):
                made.append(one)
        return made

    def _says_other(self, made: Text, text: Text) -> bool:
        """Whether a text has phrases of the same kinds at the same positions, with a different meaning."""
        ours, theirs = self.said(made), self.said(text)
        return ours != theirs and list(map(_kind, ours)) == list(map(_kind, theirs))

    def _groups(self, text: Text) -> list[list[PhraseFound]]:
        """Return objects, each with the attributes directly before it."""
        made: list[list[PhraseFound]] = []
        group: list[PhraseFound] = []
        for one in self.find(text):
            if group and group[-1].stop != one.first:
                group = []
            group = [*group, one] if one.meaning.kind != "relations" else []
            if one.meaning.kind == "objects":
                made.append(group)
                group = []
        return made

    def _phrases(self, meaning: Meaning) -> list[Text]:
        return self._said[meaning.kind][meaning.number]

    def _others(self, meaning: Meaning) -> int:
        """Return the number of other meanings of the same kind."""
        return len(self._said[meaning.kind]) - 1

    def _other(self, meaning: Meaning, rng: np.random.Generator) -> Meaning:
        drawn = int(rng.integers(self._others(meaning)))
        return meaning._replace(number=drawn + (drawn >= meaning.number))


def words_of(tokens: np.ndarray, begins: np.ndarray) -> Text:
    """Return the words [n] of tokens [T], each a tuple of ids. `begins` [T] is 1 at the first token of each word."""
    stops = [*np.flatnonzero(begins[1:]) + 1, len(tokens)]
    return tuple(tuple(tokens[first:stop].tolist()) for first, stop in pairwise([0, *stops]) if first < stop)


def tokens_of(words: Sequence[Any]) -> np.ndarray:
    """Return the tokens of words, int64 [T]."""
    return np.array([token for word in words for token in word], dtype=np.int64)


def _kind(said: Hashable) -> Hashable:
    """Return the kind of a meaning, or the word itself."""
    return said.kind if isinstance(said, Meaning) else said


def _drawn(phrases: Sequence[Text], rng: np.random.Generator) -> Text:
    return phrases[int(rng.integers(len(phrases)))]


def _replaced(text: Text, others: Mapping[PhraseFound, Text]) -> Text:
    """Replace phrases, given in order of position."""
    made, at = [], 0
    for one, other in others.items():
        made += [*text[at : one.first], *other]
        at = one.stop
    return (*made, *text[at:])
