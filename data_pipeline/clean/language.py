"""Language identification: py3langid with its bundled model of 97 languages, a model of fastText, or a function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from data_pipeline.clean.models import fasttext_labels, model_inputs, predict_labels
from data_pipeline.clean.step import cached_by_file, import_library, require
from data_pipeline.document import Document, DropCounts
from data_pipeline.functions import is_function, load_function
from megaptm.errors import UserError, nearest_name_advice
from megaptm.storage import read_table_lines

CLASSIFIED_CHARACTERS = 2_000
"""Maximum characters of a text that are classified. The start suffices, and bounds the time for long texts."""
UNKNOWN = "unknown"
"""Language of a text in which a model of fastText knows no word."""
MAX_SHOWN = 200
"""Maximum number of languages in an error message."""


@dataclass(frozen=True)
class TagLanguage:
    """Add the note `language` to each document, and drop none."""

    model: str | None = None
    """Model: file of fastText (.bin, .ftz), such as lid.176.bin or GlotLID's; `package.module:function` from a text to
    language and probability. Default: py3langid, with ISO 639-1 codes (`en`, `zh`)."""

    def input_files(self) -> tuple[str, ...]:
        """Return the path of the model's file."""
        return () if self.model is None else model_inputs(self.model, "tag-language")

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            language, _ = identify_language(document.text, self.model, "tag-language")
            yield replace(document, notes={**document.notes, "language": language})


@dataclass(frozen=True)
class KeepLanguage:
    """Keep documents in some languages, and add the note `language`."""

    languages: tuple[str, ...] | None = None
    """Languages to keep, as the model names them. Default: the languages in `thresholds`, or `en`."""
    min_probability: float = 0.65
    """Minimum probability of the identified language. The default is that of FineWeb (arXiv:2406.17557, section 3.3),
    which uses another model."""
    thresholds: dict[str, float] | str = field(default_factory=dict)
    """Minimum probability of some languages, instead of `min_probability`: a table, or a file with lines of
    `language<TAB>probability`."""
    model: str | None = None
    """Language identification model; see `tag-language`."""

    def __post_init__(self) -> None:
        require(self.languages != (), "keep-language: languages is empty: name at least one, like `en`.")
        is_valid = 0 <= self.min_probability <= 1
        require(is_valid, f"keep-language: min_probability ({self.min_probability}) must be from 0 to 1.")
        if isinstance(self.thresholds, Mapping):
            _check_thresholds(self.thresholds, "thresholds")

    def input_files(self) -> tuple[str, ...]:
        """Return the paths of the files with the model and the thresholds."""
        table = (self.thresholds,) if isinstance(self.thresholds, str) else ()
        return (*table, *(() if self.model is None else model_inputs(self.model, "keep-language")))

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        thresholds = _read_thresholds(self.thresholds) if isinstance(self.thresholds, str) else self.thresholds
        languages = self.languages or (*thresholds,) or ("en",)
        _require_known((*languages, *thresholds), self.model)
        few = len(languages) <= 3
        other_language = f"keep-language: not {' or '.join(languages) if few else f'one of {len(languages)} languages'}"
        for document in documents:
            language, probability = identify_language(document.text, self.model)
            threshold = thresholds.get(language, self.min_probability)
            if language not in languages:
                dropped.add(other_language, document.source, document.text)
            elif not probability >= threshold:  # a model may return NaN
                reason = f"keep-language: {language} with a probability below {threshold:g}"
                dropped.add(reason, document.source, document.text)
            else:
                yield replace(document, notes={**document.notes, "language": language})


def identify_language(text: str, model: str | None = None, step: str = "keep-language") -> tuple[str, float]:
    """Identify the language of a text from its start; return the most likely one and its probability. Error messages
    name `step`."""
    start = text[:CLASSIFIED_CHARACTERS]
    if model is None:
        return _load_identifier(import_library("py3langid.langid", step)).classify(start)
    if is_function(model):
        language, probability = load_function(model, step)(start)
        return str(language), float(probability)
    return next(iter(predict_labels(model, start, step)), (UNKNOWN, 0.0))


def _require_known(languages: Iterable[str], model: str | None) -> None:
    """Raise `UserError` for a language that the model does not know."""
    if model is not None and is_function(model):
        return
    if model is None:
        known = {*_load_identifier(import_library("py3langid.langid", "keep-language")).labels}
    else:
        known = {*fasttext_labels(model, "keep-language")}
    for language in sorted({*languages} - known):
        names = sorted(known)
        hint = f"use {', '.join(names)}." if len(names) <= MAX_SHOWN else nearest_name_advice(language, names)
        raise UserError(f"keep-language: language `{language}` is not known: {hint}")


def _check_thresholds(thresholds: Mapping[str, float], name: str) -> None:
    for language, threshold in thresholds.items():
        require(0 <= threshold <= 1, f"keep-language: {name} ({language}: {threshold}) must be from 0 to 1.")


@cached_by_file(maxsize=4)
def _read_thresholds(path: str) -> dict[str, float]:
    """Read a file of thresholds. Empty lines and lines that start with `#` are skipped."""
    lines = read_table_lines(path, name=f"keep-language: {path}", remedy="correct the path")
    try:
        rows = [line.split("\t") for _, line in lines]
        thresholds = {language.strip(): float(threshold) for language, threshold in rows}
    except ValueError:
        raise UserError(f"keep-language: {path} must have lines of a language, a tab and a probability.") from None
    _check_thresholds(thresholds, Path(path).name)
    return thresholds


@lru_cache(maxsize=1)
def _load_identifier(langid: Any) -> Any:
    """Load the language identification model of the module `langid`, which takes a second."""
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
