"""Hugging Face folders of tiny models with their own tokenizers."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import to_hugging_face
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.tokenizers import SPECIALS, Tokenizer, train_tokenizer_on_texts
from tests.models.tiny import tiny_spec


class ExportedTiny(NamedTuple):
    """A folder and its content."""

    folder: Path
    model: Model
    tokenizer: Tokenizer


def export_tiny(
    family: str, folder: Path, *, vocabulary: int = 400, dropout: float = 0.0, factor: float = 1.0, **options: Any
) -> ExportedTiny:
    """Export the tiny model of a family to `out` in a folder. Initial weights are multiplied by `factor`; `options` are
    those of `to_hugging_face`."""
    text, table = Path(textwrap.__file__).read_text(encoding="utf-8"), CATALOGUE[family]
    specials = table.tokenizer.specials
    vocabulary += SPECIALS[specials].sentinels if specials else 0
    tokenizer = train_tokenizer_on_texts(table.tokenizer.kind, [text], vocabulary=vocabulary, specials=specials)
    tokenizer.save(folder / "tokenizer")
    spec = replace(tiny_spec(family, dropout=dropout), vocabulary=tokenizer.vocabulary)
    init_weights(model := Model(spec), seed=0)
    weights = {name: parameter.detach() * factor for name, parameter in model.named_parameters()}
    to_hugging_face(spec, weights, folder / "tokenizer", folder / "out", **options)
    return ExportedTiny(folder / "out", model, tokenizer)
