"""Remove evaluation texts from training data (GPT-3, arXiv:2005.14165, appendix C)."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from data_pipeline.clean.basic import cut_piece
from data_pipeline.clean.comparable import comparable_text, comparable_text_with_offsets
from data_pipeline.clean.hash_set import HashSet
from data_pipeline.clean.step import (
    BatchFilter,
    CleaningStep,
    Filter,
    document_batches,
    file_version,
    require,
    require_minimum,
)
from data_pipeline.clean.words import Words, ngram_factors, split_into_words
from data_pipeline.document import Document, DropCounts, is_document_error
from megaptm.errors import UserError, quote_value
from megaptm.storage import read_text_file

MIN_WORDS = 8
"""Minimum words of an evaluation text. Shorter ones occur by chance (as in GPT-3's appendix C)."""
REASON = "contains evaluation text"


@dataclass(frozen=True)
class Decontaminate:
    """Drop documents that share an n-gram with an evaluation text.

    Texts are compared regardless of case, punctuation, markup, Unicode composition, character width, and traditional or
    simplified Chinese (`comparable_text`). Evaluation texts are matched both in their original form and as changed
    by the steps before this one.
    """

    against: tuple[str, ...]
    """Paths or globs of evaluation texts: `.jsonl` (a text per field), any other file as plain text."""
    ngram: int = 13
    """Words of an n-gram. A shorter evaluation text, of 8 words or more, must match completely. Three letters of an
    alphabet without spaces, such as Thai, count as a word."""
    fields: tuple[str, ...] = ("text",)
    """Fields of JSON lines that hold evaluation texts; each field of a line is a text."""
    texts: Literal["line", "file"] = "line"
    """Whether each line of other files is an evaluation text, or the whole file."""
    cut: bool = False
    """Whether to cut out the shared n-gram with `around` characters on both sides, and keep the pieces, as GPT-3
    did."""
    around: int = 200
    min_piece_characters: int = 200
    """Minimum characters of a piece of a cut document; shorter pieces are dropped."""
    max_pieces: int = 10
    """A document that would be cut into more pieces is dropped."""

    def __post_init__(self) -> None:
        require(bool(self.against), "decontaminate: against is empty: name files of evaluation texts.")
        require(self.ngram >= MIN_WORDS, f"decontaminate: ngram ({self.ngram}) must be {MIN_WORDS} words or more.")
        require_minimum(0, self, "decontaminate", "around", "min_piece_characters")
        require_minimum(1, self, "decontaminate", "max_pieces")
        require(self.texts in ("line", "file"), f"decontaminate: texts ({self.texts}) must be `line` or `file`.")

    def input_files(self) -> tuple[str, ...]:
        """Return the paths of all files of evaluation texts that `against` matches."""
        return tuple(path for pattern in self.against for path in _matching_paths(pattern))

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        return self._decontaminate(documents, dropped, before=())

    def after(self, steps: tuple[CleaningStep, ...]) -> CleaningStep:
        """Return this step; its evaluation texts are first preprocessed by `steps`, like the documents."""
        changing = (step for step in steps if not isinstance(step, Filter | BatchFilter | Decontaminate))
        return partial(self._decontaminate, before=tuple(changing))

    def _decontaminate(
        self, documents: Iterable[Document], dropped: DropCounts, *, before: tuple[CleaningStep, ...]
    ) -> Iterator[Document]:
        paths = self.input_files()
        known = _known_ngrams(self, before, paths, tuple(map(file_version, paths)))
        for batch in document_batches(documents):
            for document, suspicious in zip(batch, _have_known_ngrams(batch, known), strict=True):
                runs = list(_shared_spans(document.text, known)) if suspicious else []
                if not runs:
                    yield document
                elif self.cut:
                    yield from self._cut_pieces(document, runs, dropped)
                else:
                    dropped.add(f"decontaminate: {REASON}", document.source, document.text)

    def _cut_pieces(
        self, document: Document, runs: Sequence[tuple[int, int]], dropped: DropCounts
    ) -> Iterator[Document]:
        bounds = list(self._spans_between(runs, len(document.text)))
        if len(bounds) > self.max_pieces:
            dropped.add(
                f"decontaminate: {REASON}, cut into more than {self.max_pieces} pieces", document.source, document.text
            )
            return
        long_enough = [(start, stop) for start, stop in bounds if stop - start >= self.min_piece_characters]
        if not long_enough:
            dropped.add(f"decontaminate: {REASON}", document.source, document.text)
        yield from (cut_piece(document, start, stop) for start, stop in long_enough)

    def _spans_between(self, runs: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of the text between the n-grams that a document shares with evaluation texts, and their
        surroundings."""
        begin = 0
        for first, last in sorted(runs):
            if first - self.around > begin:
                yield begin, first - self.around
            begin = max(begin, last + self.around)
        if begin < length:
            yield begin, length


def _have_known_ngrams(documents: Sequence[Document], known: dict[int, HashSet]) -> list[bool]:
    """Return for each text whether a known n-gram starts in it, including n-grams that extend into the next text."""
    words, firsts = split_into_words([comparable_text(document.text) for document in documents], fold=False)
    suspicious = np.zeros(len(documents), bool)
    for _, indexes in _shared_ngrams(words, known):
        suspicious[np.searchsorted(firsts, indexes, side="right") - 1] = True
    return suspicious.tolist()


def _shared_spans(text: str, known: dict[int, HashSet]) -> Iterator[tuple[int, int]]:
    """Yield start and end, in characters, of each shared n-gram in the text."""
    compared, starts, ends = comparable_text_with_offsets(text)
    words = Words(compared, fold=False)
    firsts, lasts = words.characters(words.starts), words.characters(words.ends) - 1
    for size, indexes in _shared_ngrams(words, known):
        yield from ((int(starts[firsts[at]]), int(ends[lasts[at + size - 1]])) for at in indexes)


def _shared_ngrams(words: Words, known: dict[int, HashSet]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield n-gram size and the first words of the matches, for sizes with matches."""
    for size, hashes in known.items():
        indexes = hashes.indexes_of(words.ngrams(size))
        if len(indexes):
            yield size, indexes


@lru_cache(maxsize=4)
def _known_ngrams(
    step: Decontaminate, before: tuple[CleaningStep, ...], paths: tuple[str, ...], _: tuple[tuple[int, int], ...]
) -> dict[int, HashSet]:
    """Return n-gram size -> n-grams of the evaluation texts. Cached per process while the files do not change."""
    runs: dict[int, list[np.ndarray]] = {}
    for path in paths:
        for compared in (
            form for text in _read_evaluation_texts(path, step) for form in _comparable_forms(text, before, path)
        ):
            words = Words(compared, fold=False)
            factor = int(ngram_factors(words, np.array([0, len(words)]))[0])
            if len(words) >= MIN_WORDS * factor:
                size = min(len(words), step.ngram * factor)
                runs.setdefault(size, []).append(words.ngrams(size))
    if not runs:
        raise UserError(
            f"decontaminate: {', '.join(step.against)} have no text of {MIN_WORDS} words or more: correct `against`."
        )
    return {size: HashSet(np.concatenate(hashes)) for size, hashes in sorted(runs.items())}


def _comparable_forms(text: str, steps: tuple[CleaningStep, ...], path: str) -> set[str]:
    """Return the comparable forms of a text: as written, and as changed by `steps`. A step that drops it is skipped.

    Raises `UserError` for an evaluation text on which a step fails: it is not an error of the documents.
    """
    changed = [Document(text, "evaluation text")]
    try:
        for step in steps:
            changed = list(step(changed, DropCounts())) or changed
        return {comparable_text(text), *(comparable_text(document.text) for document in changed)}
    except Exception as error:
        if not is_document_error(error):
            raise
        raise UserError(
            f"decontaminate: a text of {path} cannot be compared ({type(error).__name__}: {error}): correct it, or "
            f"remove it; it starts with {quote_value(text)}."
        ) from error


def _matching_paths(pattern: str) -> list[str]:
    hashes = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
    if not hashes:
        raise UserError(f"decontaminate: against ({pattern}) is not a file: correct the path.")
    return hashes


def _read_evaluation_texts(path: str, step: Decontaminate) -> Iterator[str]:
    content = read_text_file(path, name=f"decontaminate: {path}", remedy="correct `against`")
    if path.endswith((".jsonl", ".ndjson")):
        for number, line in enumerate(content.split("\n"), 1):
            if line.strip():
                yield from _text_fields(line, step.fields, f"{path}:{number}")
    else:
        yield from content.split("\n") if step.texts == "line" else [content]


def _text_fields(line: str, names: tuple[str, ...], where: str) -> list[str]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"decontaminate: {where} is not JSON ({error}): correct it.") from None
    texts = [record[name] for name in names if name in record] if isinstance(record, dict) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(f"decontaminate: {where} has no text in `{'` or `'.join(names)}`: set `fields`.")
    return texts
