"""Captions that are said in other words: such that still say the same, and such that no longer do, by a word or a
phrase (UNIMO, arXiv:2012.15409, section 2.1).

Who wrote down which phrases mean the same stands in the place of the paper's parser of scenes and its translations
there and back: objects, attributes and relations are what is found in lists of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from megaptm.errors import UserError, shown

Text = tuple[Hashable, ...]
"""Words one after another: strings, or the tokens of each."""

KINDS = ("objects", "attributes", "relations")
"""Of what a scene is made; only what is of one kind can stand for another."""
TRIES = 8
"""How often it is drawn for each rewritten text that is wanted."""


class Meaning(NamedTuple):
    """What some phrases say."""

    kind: str
    number: int
    """Among the meanings of its kind."""


@dataclass(frozen=True)
class PhraseFound:
    """A phrase in a text."""

    first: int
    stop: int
    """The word after its last."""
    meaning: Meaning


class Rewriter:
    """Replaces phrases of a text. What comes out is read again, so that words which make another phrase with their
    neighbors, as a `hot` before a `dog`, never make a text something else than it is given out for."""

    def __init__(self, meanings: Mapping[str, Sequence[Sequence[Text]]]) -> None:
        """Kind -> for each meaning the phrases that say it. A `UserError` of what is not so."""
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
        """The phrases of a text from its beginning, of two that begin at one word the longer."""
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
        """What a text says: the meaning of each phrase, and all other words."""
        made: list[Hashable] = []
        at = 0
        for one in self.find(text):
            made += [*text[at : one.first], one.meaning]
            at = one.stop
        return [*made, *text[at:]]

    def kept(self, text: Text, rng: np.random.Generator, *, number: int = 1) -> list[Text]:
        """At most so many different texts that say the same: at each phrase one of its meaning, drawn anew."""

        def draw() -> Text:
            found = self.find(text)
            return _replaced(text, {one: _drawn(self._phrases(one.meaning), rng) for one in found})

        return self._different(text, draw, lambda made: self.said(made) == self.said(text), number=number)

    def broken(self, text: Text, rng: np.random.Generator, *, number: int = 1, whole: bool = False) -> list[Text]:
        """At most so many different texts that say something else: in the place of one phrase is another of its kind,
        but not of its meaning. `whole`: of an object and the attributes right before it each is replaced."""
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
        """Whether phrases are where they were, of the same kinds, and one means something else."""
        ours, theirs = self.said(made), self.said(text)
        return ours != theirs and list(map(_kind, ours)) == list(map(_kind, theirs))

    def _groups(self, text: Text) -> list[list[PhraseFound]]:
        """Objects, each behind the attributes right before it."""
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
        """How many other meanings there are of its kind."""
        return len(self._said[meaning.kind]) - 1

    def _other(self, meaning: Meaning, rng: np.random.Generator) -> Meaning:
        drawn = int(rng.integers(self._others(meaning)))
        return meaning._replace(number=drawn + (drawn >= meaning.number))


def words_of(tokens: np.ndarray, begins: np.ndarray) -> Text:
    """The words [n] of tokens [T], each the ids of one; `begins` [T] is 1 where one begins, as it does at the first."""
    stops = [*np.flatnonzero(begins[1:]) + 1, len(tokens)]
    return tuple(tuple(tokens[first:stop].tolist()) for first, stop in pairwise([0, *stops]) if first < stop)


def tokens_of(words: Sequence[Any]) -> np.ndarray:
    """int64 [T], of such words."""
    return np.array([token for word in words for token in word], dtype=np.int64)


def _kind(said: Hashable) -> Hashable:
    """The kind of a meaning; a word itself."""
    return said.kind if isinstance(said, Meaning) else said


def _drawn(phrases: Sequence[Text], rng: np.random.Generator) -> Text:
    return phrases[int(rng.integers(len(phrases)))]


def _replaced(text: Text, others: Mapping[PhraseFound, Text]) -> Text:
    """With other phrases in the place of some, which stand in their order."""
    made, at = [], 0
    for one, other in others.items():
        made += [*text[at : one.first], *other]
        at = one.stop
    return (*made, *text[at:])
