"""Pairs of texts that are longer than a sample."""

from __future__ import annotations

import re
from pathlib import Path

from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from tests import ROOT
from tests.check.conftest import messages

LONG, SHORT = 60, 400


def write_pairs(folder: Path) -> Path:
    """Build a corpus of pairs; `LONG` of them have hundreds of tokens on one side."""
    texts = [f"text number {number}" for number in range(SHORT)]
    long = [f"{number} " * 300 for number in range(LONG)]
    (folder / "texts.en").write_text("\n".join(texts + long))
    (folder / "texts.up").write_text("\n".join([*map(str.upper, texts), *(f"FEW WORDS {n}" for n in range(LONG))]))
    source = Source(str(folder / "texts.en"), format="text", aligned=".up")
    tokenizer = TokenizerRecipe(kind="bpe", vocabulary=300, specials="marian")
    recipe = Recipe(sources=(source,), steps=(), tokenizer=tokenizer, validation=0.3)
    build_corpus(recipe, folder / "corpus", workers=0)
    return folder / "corpus"


def test_pairs_longer_than_a_sample_are_counted(bench):
    corpus = write_pairs(bench.folder)
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
        return [message for message in messages(findings, "warning") if "longer than a sample" in message]

    assert not warnings(700)
    [warning] = warnings(64)
    too_long, total = map(int, re.search(r"(\d+) of (\d+) documents are longer than a sample", warning).groups())
    assert warning.endswith("never read: raise data.sequence (64), or build the corpus without them.")
    assert 0 < too_long <= LONG
    assert total <= LONG + SHORT
