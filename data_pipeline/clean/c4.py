"""Rules of C4 (T5; Raffel et al., 2020, arXiv:1910.10683, section 2.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from data_pipeline.clean.phrase_lists import read_phrase_list
from data_pipeline.clean.step import require_minimum, with_text
from data_pipeline.clean.words import Words, has_words
from data_pipeline.document import Document, DropCounts

TERMINAL = (".", "!", "?", '"', "'", "\u201d", "\u2019")
CITATION = re.compile(r"\[(?:\d+|edit|citation needed)\]", re.IGNORECASE)
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
SENTENCE_END = re.compile("[.!?][\"'\u201d\u2019)\\]]*(?=\\s|$)")


@dataclass(frozen=True)
class C4Quality:
    """Keep the lines of a web page that are sentences, and drop pages with too few. Defaults are those of the paper.

    The first version of the paper, and datatrove, require lines of 3 words and pages of 5 sentences.
    """

    min_sentences: int = 3
    """Minimum sentences in the lines that are retained."""
    min_words_per_line: int = 5
    max_word_length: int = 1_000
    """Maximum characters of a word; a line with a longer word is removed."""
    terminal_punctuation: bool = True
    """Keep only lines that end in a period, exclamation mark, question mark, or closing quotation mark."""
    remove_citations: bool = True
    """Remove `[1]`, `[edit]`, `[citation needed]`."""
    drop_javascript_lines: bool = True
    drop_policy_lines: bool = True
    """Remove lines about cookies, privacy policy and terms of use."""
    drop_lorem_ipsum: bool = True
    drop_curly_brackets: bool = True
    bad_words: str | None = None
    """File of words and phrases, one per line. A page that contains one of them is dropped."""

    def input_files(self) -> tuple[str, ...]:
        return () if self.bad_words is None else (self.bad_words,)

    def __post_init__(self) -> None:
        require_minimum(1, self, "c4-quality", "max_word_length")
        require_minimum(0, self, "c4-quality", "min_sentences", "min_words_per_line")

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            reason, text = self._page_drop_reason(document.text), ""
            if reason is None:
                text = self._retained_lines(document.text)
                if _has_fewer_sentences(text, self.min_sentences):
                    reason = f"fewer than {self.min_sentences} sentences"
            if reason is None:
                yield with_text(document, text)
            else:
                dropped.add(f"c4-quality: {reason}", document.source, document.text)

    def _page_drop_reason(self, text: str) -> str | None:
        if self.drop_curly_brackets and "{" in text:
            return "a curly bracket"
        if self.drop_lorem_ipsum and "lorem ipsum" in text.lower():
            return "lorem ipsum"
        if self.bad_words is not None and _has_listed_word(text, self.bad_words):
            return "a word of the bad-words list"
        return None

    def _retained_lines(self, text: str) -> str:
        if self.remove_citations and "[" in text:
            text = CITATION.sub("", text)
        lowered = text.lower()
        phrases = (("javascript",) if self.drop_javascript_lines else ()) + (POLICIES if self.drop_policy_lines else ())
        phrases = tuple(phrase for phrase in phrases if phrase in lowered)
        lines = (line.strip() for line in text.splitlines())
        return "\n".join(
            line for line in lines if self._keeps_line(line) and not (phrases and _contains_any(line, phrases))
        )

    def _keeps_line(self, line: str) -> bool:
        if self.terminal_punctuation and (not line.endswith(TERMINAL) or line.endswith(("...", "…"))):
            return False
        if not has_words(line, self.min_words_per_line):
            return False
        if len(line) <= self.max_word_length or not _word_longer_than(self.max_word_length).search(line):
            return True
        return not line.isascii() and bool(Words(line, split="spaces").lengths.max() <= self.max_word_length)


@lru_cache(maxsize=4)
def _word_longer_than(characters: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!\S)\S{{{characters + 1}}}")


def _contains_any(line: str, phrases: tuple[str, ...]) -> bool:
    lowered = line.lower()
    return any(phrase in lowered for phrase in phrases)


def _has_fewer_sentences(text: str, min_count: int) -> bool:
    """Whether a page's text has fewer than `min_count` sentences. Counting stops at `min_count`."""
    ends = SENTENCE_END.finditer(text)
    return any(next(ends, None) is None for _ in range(min_count))


def _has_listed_word(text: str, path: str) -> bool:
    phrases = read_phrase_list(path, "c4-quality: bad_words")
    words = Words(text)
    return any(len(known.indexes_of(words.ngrams(size))) for size, known in phrases.items())
