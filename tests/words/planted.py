"""Small corpus with planted synonyms and analogies: context words decide which vectors must be similar."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_pipeline.annotate import Annotations
from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source

LANDS = 6
ROLES = ("capital", "river", "king")
SYNONYMS = {"quick": "rapid", "small": "tiny"}


def land(number: int) -> str:
    return f"land{number}"


def role(name: str, number: int) -> str:
    return f"{name}of{number}"


def sentences(number: int, seed: int) -> list[str]:
    """Each land and each role has its own context words. Synonyms share all context words."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(number):
        index, kind = int(rng.integers(LANDS)), int(rng.integers(len(ROLES) + 1))
        thing = land(index) if kind == len(ROLES) else role(ROLES[kind], index)
        context = [f"about{index}x{rng.integers(4)}" for _ in range(3)] + [
            f"kind{kind}x{rng.integers(4)}" for _ in range(3)
        ]
        words = [*context, thing]
        rng.shuffle(words)
        lines.append(" ".join(words))
        first, second = [*SYNONYMS.items()][int(rng.integers(2))]
        pair = (first, second)[int(rng.integers(2))]
        lines.append(
            " ".join(
                [
                    f"goes{first}{rng.integers(5)}",
                    f"goes{first}{rng.integers(5)}",
                    pair,
                    f"goes{first}{rng.integers(5)}",
                ]
            )
        )
    return lines


def questions() -> list[tuple[str, str, str, str]]:
    """Return analogies: land0 is to riverof0 as land3 is to riverof3."""
    return [
        (land(first), role(name, first), land(second), role(name, second))
        for name in ROLES
        for first in range(LANDS)
        for second in range(LANDS)
        if first != second
    ]


def build(folder: Path, *, number: int = 6000, seed: int = 3, tags: bool = False) -> Path:
    """Build the corpus with a document per sentence; with `tags`, lands and their things are tagged."""
    folder.mkdir(parents=True)
    text = folder / "text.jsonl"
    text.write_text("".join(f'{{"text": "{sentence}"}}\n' for sentence in sentences(number, seed)))
    recipe = Recipe(
        sources=(Source(str(text)),),
        tokenizer=TokenizerRecipe(kind="words", vocabulary=500),
        validation=0.1,
        annotate=Annotations(tags=str(folder / "tags.tsv") if tags else None),
    )
    if tags:
        named = [("land", land(number)) for number in range(LANDS)]
        named += [("thing", role(name, number)) for name in ROLES for number in range(LANDS)]
        (folder / "tags.tsv").write_text("".join(f"{label}\t{word}\n" for label, word in named))
    from rich.console import Console

    build_corpus(recipe, folder / "corpus", workers=0, console=Console(quiet=True))
    return folder / "corpus"
