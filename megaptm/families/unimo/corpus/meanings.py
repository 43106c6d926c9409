"""Table of synonymous phrases of captions, as tokens (UNIMO)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from data_pipeline.commands import output_file
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.families.unimo.meanings import write_meanings as write_table
from megaptm.families.unimo.rewriting import KINDS
from megaptm.storage import AtomicFile, read_table_lines
from megaptm.tokenizers import Tokenizer, load_tokenizer

PhrasesByKind = Mapping[str, list[list[str]]]
"""Phrases of captions by kind: kind -> list of meanings, each a list of synonymous phrases."""


def read_meanings(path: Path) -> dict[str, list[list[str]]]:
    """Read UNIMO's synonymous phrases from lines of `kind<TAB>phrase<TAB>phrase ...`, one per meaning. Blank lines and
    lines that start with # are ignored."""
    meanings: dict[str, list[list[str]]] = {}
    for number, line in read_table_lines(path):
        kind, *phrases = (part.strip() for part in line.split("\t"))
        if kind not in KINDS or not phrases or not all(phrases):
            raise UserError(
                f"line {number} of {path} is not `kind<TAB>phrase<TAB>phrase ...` with a kind of "
                f"{', '.join(KINDS)}: correct it."
            )
        meanings.setdefault(kind, []).append(phrases)
    if not meanings:
        raise UserError(f"{path} has no phrases: add lines of a kind and synonymous phrases.")
    return meanings


def write_meanings(phrases: PhrasesByKind, tokenizer: Tokenizer, out: Path) -> tuple[int, int]:
    """Write UNIMO's table of synonymous phrases to a file; return the number of meanings and of phrases.

    Phrases are tokenized as they occur within a text, with a space before. A phrase with an unknown part or one that
    occurred earlier is omitted.
    """
    known_phrases: set[tuple[int, ...]] = set()
    table: dict[str, list[list[list[int]]]] = {}
    for kind, meanings in phrases.items():
        for meaning in meanings:
            ids = [tuple(tokenizer.encode(f" {phrase}").tolist()) for phrase in meaning]
            new = [
                phrase_ids
                for phrase_ids in dict.fromkeys(ids)
                if phrase_ids and phrase_ids not in known_phrases and not tokenizer.special.specials & {*phrase_ids}
            ]
            known_phrases |= {*new}
            if new:
                table.setdefault(kind, []).append([[*phrase_ids] for phrase_ids in new])
    if not known_phrases:
        raise UserError("meanings: the tokenizer knows no phrase of the table: use the tokenizer of the corpus.")
    marks = tokenizer.kind == "wordpiece"
    inside = [id_ for id_ in range(tokenizer.vocabulary) if _continues_word(tokenizer.name(id_), marks=marks)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(out) as unfinished:
        write_table(table, inside, unfinished)
    return sum(map(len, table.values())), len(known_phrases)


def _continues_word(name: str, *, marks: bool) -> bool:
    """Whether a token continues a word of a phrase. With `marks`, the ## of WordPiece shows it. Otherwise the token
    starts with a letter or digit, without a mark for a space."""
    return name.startswith("##") if marks else name[:1].isalnum() and not name.startswith(("Ġ", "▁"))


def build_meanings(source: str, tokenizer: str, out: str, *, console: Console | None = None) -> None:
    """Write the table of phrases that `cross-modal-contrast` rewrites captions by."""
    file = output_file(out)
    made, phrases = write_meanings(read_meanings(Path(source)), load_tokenizer(Path(tokenizer)), file)
    (console or Console()).print(f"{out}: {made:,} meanings with {phrases:,} phrases", highlight=False)
