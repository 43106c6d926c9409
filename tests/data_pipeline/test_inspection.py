"""Report of `corpus inspect`."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from data_pipeline.inspection import corpus_table, format_count, show_sample, shown_recipe
from megaptm.batch import IGNORED, BatchSpec, batch_fields
from megaptm.families.vit.token_types import LABELS


def test_custom_objective_label_is_shown():
    batch = BatchSpec({"": 4}, batch_fields((4,), "tokens") | batch_fields((), "is_low"))
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    texts = [
        show_sample({"tokens": np.arange(4), "is_low": np.array(low)}, batch, tokenizer).plain for low in (1, IGNORED)
    ]
    assert texts == ["0 1 2 3\n\nis_low: 1", "0 1 2 3"]


def test_plural():
    assert [format_count(count, "shard") for count in (0, 1, 2000)] == ["0 shards", "1 shard", "2,000 shards"]


def test_shown_recipe_omits_unset_values():
    recipe = {
        "annotate": None,
        "steps": [{"normalize": {}}],
        "deduplicate": {"documents": True, "near": None},
        "seed": 0,
    }
    made_from = {"annotation_counts": {}, "recipe": recipe, "tables": {}}
    expected = {"steps": [{"normalize": {}}], "deduplicate": {"documents": True}, "seed": 0}
    assert shown_recipe(made_from) == {"recipe": expected}


@pytest.mark.parametrize(
    ("made_from", "dtype", "rows"),
    [
        ({}, "uint16", ["tokenizer words, 5 ids", "train 2 documents, 7 tokens, 9 bytes of text, 1 shard"]),
        ({}, "uint16[9]", ["tokenizer words, 5 ids", "train 2 images, 7 tokens, 9 bytes, 1 shard"]),
        ({}, LABELS, ["labels 5", "train 2 images, 9 bytes, 1 shard"]),
    ],
)
def test_summary_of_text_and_image_corpora(made_from, dtype, rows):
    split = SimpleNamespace(samples=2, tokens=7, bytes=9, shards=(0,))
    manifest = SimpleNamespace(id="1f", splits={"train": split}, made_from=made_from, dtype=dtype)
    console = Console(file=io.StringIO(), width=120)
    console.print(corpus_table(SimpleNamespace(manifest=manifest), SimpleNamespace(kind="words", vocabulary=5)))
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines[:3] == ["id 1f", *rows]
