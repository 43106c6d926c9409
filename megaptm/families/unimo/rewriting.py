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

from megaptm.errors import UserError, quote_value

Text = tuple[Hashable, ...]
"""Text of a caption as words in order: strings, or the token ids of each."""

KINDS = ("objects", "attributes", "relations")
"""Kinds of phrases in captions. A phrase is only replaced by one of its kind."""
TRIES = 8
"""Number of attempts per requested rewriting of a caption."""


class Meaning(NamedTuple):
    """Meaning that some phrases of captions share."""

    kind: str
    id: int
    """Index of the meaning among those of its kind."""


@dataclass(frozen=True)
class PhraseMatch:
    """Match of a phrase in a caption."""

    first: int
    stop: int
    """Index of the word after the last of the phrase."""
    meaning: Meaning


class Rewriter:
    """Rewriter of captions, by replacement of phrases.

    The result is parsed again: words that form another phrase with their neighbors, as `hot` before `dog`, must not
    change the meaning of a paraphrase.
    """

    def __init__(self, meanings: Mapping[str, Sequence[Sequence[Text]]]) -> None:
        """Create the rewriter. `meanings`: kind -> phrases of each meaning. Raises `UserError` if a phrase is empty or
        ambiguous."""
        self._phrases_of = {
            kind: [list(map(tuple, phrases)) for phrases in groups] for kind, groups in meanings.items()
        }
        self._meanings: dict[Text, Meaning] = {}
        for kind, groups in self._phrases_of.items():
            if kind not in KINDS:
                raise UserError(f"rewriting: {quote_value(kind)} is not a kind of phrase: use {', '.join(KINDS)}.")
            for index, phrases in enumerate(groups):
                if not phrases:
                    raise UserError(
                        f"rewriting: meaning {index} of the {kind} has no phrases: add one, or remove the meaning."
                    )
                for phrase in phrases:
                    if not phrase:
                        raise UserError(f"rewriting: a phrase of the {kind} has no words: remove it.")
                    if phrase in self._meanings:
                        raise UserError(
                            f"rewriting: {quote_value(phrase)} occurs twice, among the "
                            f"{self._meanings[phrase].kind} and the {kind}: a phrase has one meaning; remove one."
                        )
                    self._meanings[phrase] = Meaning(kind, index)
        self._longest = max(map(len, self._meanings), default=0)

    def find(self, text: Text) -> list[PhraseMatch]:
        """Find the phrases of a caption (UNIMO) from left to right, the longest at each position."""
        matches, at = [], 0
        while at < len(text):
            for stop in range(min(at + self._longest, len(text)), at, -1):
                if (meaning := self._meanings.get(text[at:stop])) is not None:
                    matches.append(PhraseMatch(at, stop, meaning))
                    at = stop
                    break
            else:
                at += 1
        return matches

    def parse(self, text: Text) -> list[Hashable]:
        """Return the meaning of a caption (UNIMO): the meanings of its phrases, and all other words."""
        parsed: list[Hashable] = []
        at = 0
        for match in self.find(text):
            parsed += [*text[at : match.first], match.meaning]
            at = match.stop
        return [*parsed, *text[at:]]

    def paraphrases(self, text: Text, rng: np.random.Generator, *, number: int = 1) -> list[Text]:
        """Return up to `number` different paraphrases of a caption (UNIMO): each phrase is replaced by a random one
        with the same meaning."""

        def sample() -> Text:
            return _replace(
                text,
                {match: _choose_phrase(self._phrases_with_meaning(match.meaning), rng) for match in self.find(text)},
            )

        return self._sample_different(text, sample, lambda made: self.parse(made) == self.parse(text), number=number)

    def negatives(
        self, text: Text, rng: np.random.Generator, *, number: int = 1, with_attributes: bool = False
    ) -> list[Text]:
        """Return up to `number` rewritings of a caption with another meaning: one phrase is replaced by another meaning
        of its kind. `with_attributes`: an object and the attributes directly before it are all replaced."""
        groups = self._objects_with_attributes(text) if with_attributes else [[match] for match in self.find(text)]
        groups = [group for group in groups if all(self._num_others(match.meaning) for match in group)]
        if not groups:
            return []

        def sample() -> Text:
            group = groups[rng.integers(len(groups))]
            return _replace(
                text,
                {
                    match: _choose_phrase(self._phrases_with_meaning(self._other_meaning(match.meaning, rng)), rng)
                    for match in group
                },
            )

        return self._sample_different(text, sample, lambda made: self._has_other_meaning(made, text), number=number)

    def _sample_different(
        self, text: Text, sample: Callable[[], Text], is_valid: Callable[[Text], bool], *, number: int
    ) -> list[Text]:
        """Return up to `number` valid rewritings that differ from the caption and from each other."""
        samples: list[Text] = []
        for _ in range(TRIES * number):
            if len(samples) == number:
                break
            if (candidate := sample()) != text and candidate not in samples and is_valid(candidate):
                samples.append(candidate)
        return samples

    def _has_other_meaning(self, made: Text, text: Text) -> bool:
        """Whether a rewritten caption has phrases of the same kinds at the same positions, with a different meaning."""
        parsed, original = self.parse(made), self.parse(text)
        return parsed != original and list(map(_kind_or_word, parsed)) == list(map(_kind_or_word, original))

    def _objects_with_attributes(self, text: Text) -> list[list[PhraseMatch]]:
        """Return the objects in a caption, each with the attributes directly before it."""
        groups: list[list[PhraseMatch]] = []
        group: list[PhraseMatch] = []
        for match in self.find(text):
            if group and group[-1].stop != match.first:
                group = []
            group = [*group, match] if match.meaning.kind != "relations" else []
            if match.meaning.kind == "objects":
                groups.append(group)
                group = []
        return groups

    def _phrases_with_meaning(self, meaning: Meaning) -> list[Text]:
        return self._phrases_of[meaning.kind][meaning.id]

    def _num_others(self, meaning: Meaning) -> int:
        """Return the number of other meanings of the same kind of phrase."""
        return len(self._phrases_of[meaning.kind]) - 1

    def _other_meaning(self, meaning: Meaning, rng: np.random.Generator) -> Meaning:
        index = int(rng.integers(self._num_others(meaning)))
        return meaning._replace(id=index + (index >= meaning.id))


def split_words(tokens: np.ndarray, starts: np.ndarray) -> Text:
    """Split tokens [T] of a caption (UNIMO) into words [n], each a tuple of ids. `starts` [T] is 1 at the first token
    of each word."""
    stops = [*np.flatnonzero(starts[1:]) + 1, len(tokens)]
    return tuple(tuple(tokens[first:stop].tolist()) for first, stop in pairwise([0, *stops]) if first < stop)


def join_words(words: Sequence[Any]) -> np.ndarray:
    """Join the words of a caption (UNIMO) to tokens, int64 [T]."""
    return np.array([token for word in words for token in word], dtype=np.int64)


def _kind_or_word(item: Hashable) -> Hashable:
    """Return the kind of a phrase's meaning, or the word itself if it is no phrase."""
    return item.kind if isinstance(item, Meaning) else item


def _choose_phrase(phrases: Sequence[Text], rng: np.random.Generator) -> Text:
    return phrases[int(rng.integers(len(phrases)))]


def _replace(text: Text, replacements: Mapping[PhraseMatch, Text]) -> Text:
    """Replace phrases of a caption, given in order of position."""
    words, at = [], 0
    for match, replacement in replacements.items():
        words += [*text[at : match.first], *replacement]
        at = match.stop
    return (*words, *text[at:])
