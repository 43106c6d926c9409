"""Pairs of texts that are longer than a row."""

from __future__ import annotations

import re
from pathlib import Path

from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from tests import ROOT
from tests.check.conftest import saying

LONG, SHORT = 60, 400


def write_pairs(folder: Path) -> Path:
    """A corpus of pairs; `LONG` of them are hundreds of tokens on one side."""
    texts = [f"text number {number}" for number in range(SHORT)]
    long = [f"{number} " * 300 for number in range(LONG)]
    (folder / "texts.en").write_text("\n".join(texts + long))
    (folder / "texts.up").write_text("\n".join([*map(str.upper, texts), *(f"FEW WORDS {n}" for n in range(LONG))]))
    source = Source(str(folder / "texts.en"), format="text", aligned=".up")
    tokenizer = TokenizerRecipe(kind="bpe", vocabulary=300, specials="marian")
    recipe = Recipe(sources=(source,), steps=(), tokenizer=tokenizer, validation=0.3)
    build_corpus(recipe, folder / "corpus", workers=0)
    return folder / "corpus"


def test_pairs_that_no_row_takes_are_counted(bench):
    corpus = write_pairs(bench.place)
    config = [str(ROOT / "configs/transformer/tiny.yaml"), f"run={bench.run}", f"data.mix={{{corpus}: 1}}"]

    def warnings(sequence):
        more = (
            "model.vocabulary=300",
            f"data.sequence={sequence}",
            "train.steps=60",
            "train.batch=1",
            "layout.microbatch=1",
        )
        code, findings = bench.check(*config, *more, topics=("config", "data"))
        assert code == 0, findings
        return [one for one in saying(findings, "warning") if "longer than a row" in one]

    assert not warnings(700)
    [said] = warnings(64)
    looked_at, lost = map(int, re.search(r"of (\d+) documents looked at (\d+) are longer than a row", said).groups())
    assert said.endswith("never read: raise data.sequence (64), or build the corpus without them.")
    assert 0 < lost <= LONG
    assert looked_at <= LONG + SHORT
