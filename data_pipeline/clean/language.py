"""Language identification with py3langid and its bundled model of 97 languages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from data_pipeline.clean.step import import_library, require
from data_pipeline.document import Document, DropCounts
from megaptm.errors import UserError

CLASSIFIED_CHARACTERS = 2_000
"""Maximum characters of a text that are classified. The start suffices, and bounds the time for long texts."""


@dataclass(frozen=True)
class TagLanguage:
    """Add the note `language` (ISO 639-1: `en`, `zh`) to each document, and drop none."""

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            language, _ = identify(document.text)
            yield replace(document, notes={**document.notes, "language": language})


@dataclass(frozen=True)
class KeepLanguage:
    """Keep documents in some languages, and add the note `language`."""

    languages: tuple[str, ...] = ("en",)
    """ISO 639-1 codes of the languages to keep."""
    min_probability: float = 0.65
    """Minimum probability of the identified language. The default is that of FineWeb (arXiv:2406.17557, section 3.3),
    which uses another model."""

    def __post_init__(self) -> None:
        require(bool(self.languages), "keep-language: languages is empty: name at least one, like `en`.")
        is_valid = 0 <= self.min_probability <= 1
        require(is_valid, f"keep-language: min_probability ({self.min_probability}) must be from 0 to 1.")

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        self._require_known()
        for document in documents:
            language, probability = identify(document.text)
            if language not in self.languages:
                dropped.add(f"keep-language: not {' or '.join(self.languages)}", document.source, document.text)
            elif probability < self.min_probability:
                reason = f"keep-language: {language} with a probability below {self.min_probability:g}"
                dropped.add(reason, document.source, document.text)
            else:
                yield replace(document, notes={**document.notes, "language": language})

    def _require_known(self) -> None:
        known = sorted(_load_identifier().labels)
        for language in self.languages:
            if language not in known:
                raise UserError(f"keep-language: language `{language}` is not known: use {', '.join(known)}.")


def identify(text: str) -> tuple[str, float]:
    """Identify the language of a text from its start; return the most likely one and its probability."""
    return _load_identifier().classify(text[:CLASSIFIED_CHARACTERS])


@lru_cache(maxsize=1)
def _load_identifier() -> Any:
    """Load the language identification model, which takes a second."""
    langid = import_library("py3langid.langid", "keep-language")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
