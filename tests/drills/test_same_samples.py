"""The samples and noise of a step depend only on its index, not on ranks, workers, micro-batches or the start of the
run."""

import numpy as np
import pytest

from megaptm.config import load_config
from megaptm.parallel.groups import Ranks
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import absolute_paths
from megaptm.train.batch_source import BatchSource
from tests.drills.program import arguments

KINDS = {"gpt2": "byte-bpe", "bert": "wordpiece", "t5": "unigram"}
BATCH = 12
STEPS = 3


def ranks_of(size):
    """Yield the ranks of a layout with `size` data ranks."""
    for data in range(size):
        yield Ranks(world=data, tensor=0, pipeline=0, data=data, tensor_size=1, pipeline_size=1, data_size=size)


def read_steps(family, corpus, tmp_path, *, data=1, microbatch=12, workers=0, start=0):
    """Return the next steps, each joined over ranks: field -> [BATCH, ...]."""
    path, *overrides = arguments(family, tmp_path / "run", corpus)
    layout = [f"layout.data={data}", f"layout.microbatch={microbatch}", f"data.workers={workers}"]
    config = absolute_paths(load_config(path, [*overrides, *layout]))
    parts = []
    for ranks in ranks_of(data):
        source = BatchSource(config, ranks, RunCorpora(config))
        parts.append([batches for batches, _ in zip(source.steps(start), range(STEPS), strict=False)])
        source.close()
    return [join_batches([batch for rank in step for batch in rank]) for step in zip(*parts, strict=True)]


def join_batches(batches):
    return {field: np.concatenate([batch[field].numpy() for batch in batches]) for field in batches[0]}


@pytest.mark.parametrize("family", KINDS)
def test_step_reads_same_samples_with_same_noise(family, real_corpus, tmp_path):
    corpus = real_corpus(KINDS[family])
    expected = read_steps(family, corpus, tmp_path)
    assert all(len(step["tokens"]) == BATCH for step in expected)
    assert not np.array_equal(expected[0]["tokens"], expected[1]["tokens"])
    for layout in (
        {"data": 2, "microbatch": 6},
        {"data": 3, "microbatch": 1},
        {"data": 4, "microbatch": 3},
        {"microbatch": 2, "workers": 1},
        {"microbatch": 4, "workers": 2},
        {"data": 2, "microbatch": 3, "workers": 2},
    ):
        np.testing.assert_equal(read_steps(family, corpus, tmp_path, **layout), expected, str(layout))
    later = read_steps(family, corpus, tmp_path, start=2, data=3, microbatch=4)
    np.testing.assert_equal(later[0], expected[2])
