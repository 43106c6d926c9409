"""Share of the words of a document that are in a list for its language: toxic words, or any other category."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from data_pipeline.clean.phrase_lists import count_listed_words, read_phrase_list
from data_pipeline.clean.step import require, require_shares
from data_pipeline.clean.words import Words
from data_pipeline.document import Document, DropCounts

DECIMALS = 6
EVERY = "*"
"""Name of the list for documents of every language."""


@dataclass(frozen=True)
class TagLists:
    """Add the share of listed words as a note, and drop documents above `max_share`. Text is not changed."""

    lists: dict[str, str]
    """Files of words or phrases, one per line, by the language of documents (their note `language`); `*` for all
    languages."""
    max_share: float | None = None
    """Maximum share of listed words of documents that are kept. Default: all are kept."""
    note: str = "toxicity"
    """Name of the note. Several steps can add several notes."""

    def __post_init__(self) -> None:
        require(bool(self.lists), "tag-lists: lists is empty: name a file for a language, such as `en: toxic-en.txt`.")
        require(bool(self.note), "tag-lists: note is empty: name it.")
        require_shares(self, "tag-lists", "max_share")

    def input_files(self) -> tuple[str, ...]:
        """Return the paths of the files with the lists."""
        return tuple(self.lists.values())

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        lists = {language: read_phrase_list(path, "tag-lists: lists") for language, path in self.lists.items()}
        for document in documents:
            phrases = [lists[name] for name in (str(document.notes.get("language")), EVERY) if name in lists]
            if not phrases:
                yield document
                continue
            words = Words(document.text)
            count = max(count_listed_words(words, known) for known in phrases)
            share = round(count / max(1, len(words)), DECIMALS)
            if self.max_share is not None and share > self.max_share:
                reason = f"tag-lists: {self.note} above {self.max_share:g}"
                dropped.add(reason, document.source, document.text)
            else:
                yield replace(document, notes={**document.notes, self.note: share})
