"""Who reads what of a run's batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.config import load
from megaptm.data import Mix
from megaptm.parallel.groups import Ranks
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import absolute_paths
from megaptm.train.batch_source import BatchSource
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
