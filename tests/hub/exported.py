"""Folders as Hugging Face's models have them, of tiny models with a tokenizer of their own."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import to_hugging_face
from megaptm.models import Model, build_model, fill
from megaptm.tokenizers import Tokenizer, train
from tests.models.tiny import tiny_spec


class ExportedTiny(NamedTuple):
    """A folder, and what is in it."""

    folder: Path
    model: Model
    tokenizer: Tokenizer


def export_tiny(
    family: str, place: Path, *, vocabulary: int = 400, dropout: float = 0.0, factor: float = 1.0, **options: Any
) -> ExportedTiny:
    """The tiny model of a family below `place`, in `out`; weights, as a new model begins, times `factor`; `options` as
    `to_hugging_face` has them."""
    text, table = Path(textwrap.__file__).read_text(encoding="utf-8"), CATALOGUE[family]
    tokenizer = train(table.tokenizer, [text], vocabulary=vocabulary, specials=table.specials)
    tokenizer.save(place / "tokenizer")
    spec = replace(tiny_spec(family, dropout=dropout), vocabulary=tokenizer.vocabulary)
    fill(model := build_model(spec), seed=0)
    weights = {name: parameter.detach() * factor for name, parameter in model.named_parameters()}
    to_hugging_face(spec, weights, place / "tokenizer", place / "out", **options)
    return ExportedTiny(place / "out", model, tokenizer)
