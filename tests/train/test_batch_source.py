"""Who reads what of a run's batches."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from megaptm.config import load
from megaptm.data import Mix, validation_batches
from megaptm.parallel.groups import Ranks
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import absolute_paths
from megaptm.train.batch_source import BatchSource
from tests.data_pipeline.images.pictures import digits
from tests.train.runs import build, settings, write_text


def test_tensor_ranks_that_are_sent_their_batches_read_no_held_out_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = build(write_text(tmp_path / "text"), tmp_path / "corpus", "gpt2")
    words = ("layout.tensor=2", "train.batch=4", "train.validate_batches=2")
    path, *overrides = settings("gpt2", tmp_path / "run", corpus, *words)
    config = absolute_paths(load(path, overrides))
    read: list[int] = []
    really = Mix.sample
    monkeypatch.setattr(Mix, "sample", lambda mix, number: read.append(number) or really(mix, number))
    found = {}
    for tensor in range(2):
        ranks = Ranks(world=tensor, tensor=tensor, pipeline=0, data=0, tensor_size=2, pipeline_size=1, data_size=1)
        found[tensor] = list(BatchSource(config, ranks, RunCorpora(config)).held_out())
        assert len(read) == 2 * 4
    assert [len(batches or []) for batches in found[0]] == [2, 2]
    assert found[1] == [None, None]


def test_held_out_images_are_decoded_as_they_are_asked_for(tmp_path: Path) -> None:
    """Some micro-batches are held, and not all: pixels of a validation of many steps are gigabytes. They are the same
    whoever decodes them."""
    corpus, size = digits(tmp_path / "digits", validation=0.2), 96
    objective = f"objective={{image-labels: {{size: {size}}}}}"
    words = [f"data.mix={{{corpus}: 1}}", f"run={tmp_path / 'run'}", objective, f"model.patch={size // 4}"]
    rows = ["train.batch=4", "layout.microbatch=4", "layout.data=1", "train.validate_batches=20", "model.vocabulary=10"]
    micro_batch = 4 * 3 * size**2
    alone = Ranks(world=0, tensor=0, pipeline=0, data=0, tensor_size=1, pipeline_size=1, data_size=1)
    for workers in (0, 1):
        config = absolute_paths(load("vit/tiny", [*words, *rows, f"data.workers={workers}"]))
        source = BatchSource(config, alone, RunCorpora(config))
        wanted = validation_batches(source.validation, batch=4, microbatch=4, most=20)
        assert len(wanted) == 20
        tracemalloc.start()
        for expected, found in zip(wanted, source.held_out(), strict=True):
            assert all(found[0][name].equal(field) for name, field in expected[0].items())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 12 * micro_batch
