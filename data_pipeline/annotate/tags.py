"""Labeled phrases (entities, terms), found by a function or listed in a file.

A tagger is a function that takes a text and yields (start, end, label) for each phrase. Its attribute `labels` lists
all possible labels, so that their indexes are known before the first text:

    def people(text):
        for match in re.finditer(r"\\b(?:Mr|Ms)\\. [A-Z]\\w+", text):
            yield match.start(), match.end(), "person"

    people.labels = ["person"]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from data_pipeline.annotate.words import word_offsets
from data_pipeline.document import Document
from data_pipeline.functions import is_function, load_function
from megaptm.errors import UserError
from megaptm.storage import read_table_lines

Tag = tuple[int, int, str]
SETTING = "annotate.tags"


@dataclass(frozen=True)
class Tagger:
    """Function that tags phrases in a text, and the sorted names of its labels."""

    name: str
    find: Callable[[str], Iterable[Tag]]
    labels: tuple[str, ...]

    def tags(self, document: Document) -> list[Tag]:
        """Return the validated tagged phrases of a document. Raises `ValueError`, or any exception of the function."""
        tags = [(int(first), int(stop), label) for first, stop, label in self.find(document.text)]
        for first, stop, label in tags:
            if not 0 <= first < stop <= len(document.text) or label not in self.labels:
                raise ValueError(
                    f"{self.name} returned {(first, stop, label)} for a text of {len(document.text):,} characters; its "
                    f"labels are {', '.join(self.labels)}"
                )
        return tags


@lru_cache(maxsize=8)
def load_tagger(name: str) -> Tagger:
    """Return the tagger that a recipe names: a file of phrases, or a function."""
    if not is_function(name):
        phrases = _read_phrases(name)
        return Tagger(name, PhraseMatcher(phrases), tuple(sorted(set(phrases.values()))))
    function = load_function(name, SETTING)
    labels = getattr(function, "labels", None)
    if not isinstance(labels, Iterable) or isinstance(labels, str):
        raise UserError(f'{SETTING}: {name} has no list of labels: set `{name.split(":")[1]}.labels = ["..."]`.')
    return Tagger(name, function, tuple(sorted(set(labels))))


def _read_phrases(path: str) -> dict[str, str]:
    """Read a file of tagged phrases, lines of `label<TAB>phrase`, as phrase -> label. Blank lines and lines that start
    with # are ignored."""
    phrases: dict[str, str] = {}
    for number, line in read_table_lines(path, name=f"{SETTING}: {path}"):
        label, _, phrase = (part.strip() for part in line.partition("\t"))
        if not label or not phrase:
            raise UserError(f"{SETTING}: line {number} of {path} is not `label<TAB>phrase`: correct it.")
        if phrases.setdefault(phrase, label) != label:
            raise UserError(f"{SETTING}: line {number} of {path} gives `{phrase}` a second label: remove one.")
    if not phrases:
        raise UserError(f"{SETTING}: {path} has no phrases: add lines of `label<TAB>phrase`.")
    return phrases


class PhraseMatcher:
    """Finds the phrases of a list in a text: complete words, from left to right, longest first, without overlap."""

    def __init__(self, phrases: Mapping[str, str]):
        self._phrases = phrases
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for phrase in phrases:
            lengths[_first_word(phrase)].add(len(phrase))
        self._lengths: dict[str, Sequence[int]] = {word: sorted(those)[::-1] for word, those in lengths.items()}

    def __call__(self, text: str) -> Iterator[Tag]:
        borders = [*word_offsets(text).tolist(), len(text)]
        ends, after = set(borders), 0
        for first, stop in pairwise(borders):
            if first < after:
                continue
            for length in self._lengths.get(text[first:stop], ()):
                label = self._phrases.get(text[first : first + length])
                if label is not None and first + length in ends:
                    after = first + length
                    yield first, after, label
                    break


def _first_word(phrase: str) -> str:
    return phrase[: word_offsets(phrase)[1]] if len(word_offsets(phrase)) > 1 else phrase
