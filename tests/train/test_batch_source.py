"""Samples that each rank reads."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from megaptm.config import load_config
from megaptm.data import Mix, read_validation
from megaptm.parallel.groups import Ranks
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import absolute_paths
from megaptm.train.batch_source import BatchSource
from tests.data_pipeline.images.pictures import digits
from tests.train.runs import build, settings, write_text


def test_only_tensor_rank_0_reads_validation_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = build(write_text(tmp_path / "text"), tmp_path / "corpus", "gpt2")
    words = ("layout.tensor=2", "train.batch=4", "train.validate_batches=2")
    path, *overrides = settings("gpt2", tmp_path / "run", corpus, *words)
    config = absolute_paths(load_config(path, overrides))
    read: list[int] = []
    really = Mix.sample
    monkeypatch.setattr(Mix, "sample", lambda mix, number: read.append(number) or really(mix, number))
    batches_by_rank = {}
    for tensor in range(2):
        ranks = Ranks(world=tensor, tensor=tensor, pipeline=0, data=0, tensor_size=2, pipeline_size=1, data_size=1)
        batches_by_rank[tensor] = list(BatchSource(config, ranks, RunCorpora(config)).validation_batches())
        assert len(read) == 2 * 4
    assert [len(batches or []) for batches in batches_by_rank[0]] == [2, 2]
    assert batches_by_rank[1] == [None, None]


def test_validation_images_are_decoded_lazily(tmp_path: Path) -> None:
    """Only some micro-batches are in memory: pixels of a long validation take gigabytes. Workers decode the same
    pixels."""
    corpus, size = digits(tmp_path / "digits", validation=0.2), 96
    objective = f"objective={{image-labels: {{size: {size}}}}}"
    words = [f"data.mix={{{corpus}: 1}}", f"run={tmp_path / 'run'}", objective, f"model.patch={size // 4}"]
    rows = ["train.batch=4", "layout.microbatch=4", "layout.data=1", "train.validate_batches=20", "model.vocabulary=10"]
    micro_batch = 4 * 3 * size**2
    alone = Ranks(world=0, tensor=0, pipeline=0, data=0, tensor_size=1, pipeline_size=1, data_size=1)
    for workers in (0, 1):
        config = absolute_paths(load_config("vit/tiny", [*words, *rows, f"data.workers={workers}"]))
        source = BatchSource(config, alone, RunCorpora(config))
        expected_batches = [*read_validation(source.validation, batch=4, microbatch=4, max_steps=20)]
        assert len(expected_batches) == 20
        tracemalloc.start()
        for expected, batch in zip(expected_batches, source.validation_batches(), strict=True):
            assert all(batch[0][name].equal(field) for name, field in expected[0].items())
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 12 * micro_batch
