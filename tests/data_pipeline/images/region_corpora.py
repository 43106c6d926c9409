"""Corpora of texts and of a detector's regions in images of drawn shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_pipeline.recipe import TokenizerRecipe
from megaptm.families.uniter.corpus.region_shapes import DETECTOR, NUM_IMAGES, write_region_shapes
from tests.data_pipeline.images.pictures import build

TOKENIZERS = {
    "uniter": TokenizerRecipe(kind="wordpiece", vocabulary=120, lowercase=False),
    "unimo": TokenizerRecipe(kind="byte-bpe", vocabulary=320, specials="roberta"),
}
"""Family -> the corpus on which the comment of its tiny config trains it."""


def region_corpus(out: Path, *, images: int = NUM_IMAGES, tokenizer: TokenizerRecipe, **options: Any) -> Path:
    """Built in this process, with this many images, whose files are next to it."""
    write_region_shapes(source := out.with_name(f"{out.name}-source"), images=images)
    build(source, out, texts=True, regions=True, detector=DETECTOR, tokenizer=tokenizer, **options)
    return out
