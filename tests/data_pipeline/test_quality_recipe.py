"""Commands of configs/corpora/web-quality.yaml: from examples of good text to a run on the better half of a corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megaptm.data.shards import read_manifest
from tests import ROOT
from tests.data_pipeline.test_quality import KINDS, text
from tests.forked import megaptm

MIX = "[{weight: 3, quality: [0.5, 1.0]}, {weight: 1, quality: [0.2, 0.5], max_epochs: 1}]"


def test_a_run_reads_the_better_half(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    for kind in KINDS:
        records = [{"text": text(kind, number)} for number in range(120)]
        (tmp_path / f"{kind}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    mixed = [{"text": f"{text('good', number)}\n{text('other', number)}"} for number in range(200, 300)]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(record) + "\n" for record in mixed))
    model, corpus, run = (tmp_path / name for name in ("web.quality", "corpus", "run"))
    examples = ("--good", tmp_path / "good.jsonl", "--ordinary", tmp_path / "other.jsonl")
    megaptm("corpus", "train-quality", *examples, "--out", model)
    names = ", ".join(f"{{path: {tmp_path}/{name}.jsonl, domain: {name}}}" for name in (*KINDS, "mixed"))
    recipe = (
        f"sources=[{names}]",
        f"steps=[normalize, score-quality: {{model: {model}, min_score: 0.02}}]",
        *("deduplicate={cluster_sizes: true}", "tokenizer.vocabulary=512", "validation=0.2", "shard_bytes=16384"),
    )
    megaptm("corpus", "build", ROOT / "configs/corpora/web-quality.yaml", f"out={corpus}", "workers=0", *recipe)
    groups = read_manifest(corpus).made_from["groups"]
    assert groups["domains"] == ["good", "mixed", "other"]
    settings = ("train.steps=6", "train.batch=4", "layout.microbatch=4", "data.sequence=64", "track.enabled=false")
    megaptm("train", ROOT / "configs/gpt2/tiny.yaml", f"run={run}", f"data.mix={{{corpus}: {MIX}}}", *settings)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = {name: value for record in records for name, value in record.items() if name.startswith("tokens/")}
    assert [name.removeprefix("tokens/corpus") for name in tokens] == [" (quality 0.5 to 1)", " (quality 0.2 to 0.5)"]
    assert sum(tokens.values()) == 6 * 4 * 64
