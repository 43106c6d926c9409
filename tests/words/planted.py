"""A small corpus in which words are alike by their company, and pairs of them in the same way apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_pipeline.annotate import Annotations
from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source

PLACES = 6
ROLES = ("capital", "river", "king")
SYNONYMS = {"quick": "rapid", "small": "tiny"}


def place(number: int) -> str:
    return f"land{number}"


def role(name: str, number: int) -> str:
    return f"{name}of{number}"


def sentences(number: int, seed: int) -> list[str]:
    """Every place has words of its own, and so has every role, whatever the place; synonyms share all their company."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        at, kind = int(rng.integers(PLACES)), int(rng.integers(len(ROLES) + 1))
        thing = place(at) if kind == len(ROLES) else role(ROLES[kind], at)
        company = [f"about{at}x{rng.integers(4)}" for _ in range(3)] + [
            f"kind{kind}x{rng.integers(4)}" for _ in range(3)
        ]
        words = [*company, thing]
        rng.shuffle(words)
        made.append(" ".join(words))
        first, second = [*SYNONYMS.items()][int(rng.integers(2))]
        pair = (first, second)[int(rng.integers(2))]
        made.append(
            " ".join(
                [
                    f"goes{first}{rng.integers(5)}",
                    f"goes{first}{rng.integers(5)}",
                    pair,
                    f"goes{first}{rng.integers(5)}",
                ]
            )
        )
    return made


def questions() -> list[tuple[str, str, str, str]]:
    """land0 is to riverof0 as land3 is to riverof3."""
    return [
        (place(one), role(name, one), place(two), role(name, two))
        for name in ROLES
        for one in range(PLACES)
        for two in range(PLACES)
        if one != two
    ]


def build(folder: Path, *, number: int = 6000, seed: int = 3, tags: bool = False) -> Path:
    """The corpus, a document a sentence; with `tags` places and what they have are tagged."""
    folder.mkdir(parents=True)
    text = folder / "text.jsonl"
    text.write_text("".join(f'{{"text": "{one}"}}\n' for one in sentences(number, seed)))
    recipe = Recipe(
        sources=(Source(str(text)),),
        tokenizer=TokenizerRecipe(kind="words", vocabulary=500),
        validation=0.1,
        annotate=Annotations(tags=str(folder / "tags.tsv") if tags else None),
    )
    if tags:
        named = [("land", place(number)) for number in range(PLACES)]
        named += [("thing", role(name, number)) for name in ROLES for number in range(PLACES)]
        (folder / "tags.tsv").write_text("".join(f"{label}\t{word}\n" for label, word in named))
    from rich.console import Console

    build_corpus(recipe, folder / "corpus", workers=0, console=Console(quiet=True))
    return folder / "corpus"
