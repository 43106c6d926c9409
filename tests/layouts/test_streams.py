"""Each rank of a layout has its own random stream, and one that it shares with the tensor ranks of its stage."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

from megaptm.config import Layout, load_config
from megaptm.parallel.groups import stream_seed
from tests import ROOT
from tests.ranks import run_ranks

LAYOUT = Layout(tensor=2, pipeline=2)


@pytest.mark.parametrize(
    "layout",
    [
        load_config(ROOT / "configs/gpt3/175b.yaml", ["devices=1024"]).layout,
        Layout(data=4, tensor=8, pipeline=16),
        Layout(data=16, tensor=1, pipeline=64),
        Layout(data=8, tensor=16, pipeline=8),
    ],
    ids=["175B", "4x8x16", "16x1x64", "8x16x8"],
)
def test_random_streams_of_ranks_and_steps_are_distinct(layout):
    own, shared = [], []
    for step, data, pipeline in product(range(3), range(layout.data), range(layout.pipeline)):
        shared.append(stream_seed(1234, step, data, pipeline))
        own += [stream_seed(1234, step, data, pipeline, tensor) for tensor in range(layout.tensor)]
    assert len({*own, *shared}) == len(own) + len(shared) == 3 * (layout.processes + layout.data * layout.pipeline)


def test_dropout_rate_is_equal_on_all_ranks():
    """Masks differ between ranks, and are samples of one distribution."""
    masks = []
    with torch.random.fork_rng():
        for data, pipeline in product(range(4), range(2)):
            torch.manual_seed(stream_seed(1234, 5, data, pipeline))
            masks.append(F.dropout(torch.ones(100_000), 0.1))
    assert len({mask.sum().item() for mask in masks}) == len(masks)
    assert [mask.count_nonzero().item() / 100_000 for mask in masks] == pytest.approx([0.9] * 8, abs=4 * 0.3 / 316)
    assert torch.cat(masks).unique().tolist() == pytest.approx([0.0, 1 / 0.9])


def sample_twice():
    """Return samples of this rank's own stream and of the shared one. They are equal when seeded again."""
    from megaptm.parallel.groups import TENSOR_RANK_RNG, get_cuda_rng_tracker, open_groups, seed_step

    ranks, samples = open_groups(LAYOUT), []
    for _ in range(2):
        seed_step(1234, 5, ranks)
        shared = torch.rand(4).tolist()
        with get_cuda_rng_tracker().fork(TENSOR_RANK_RNG):
            own = torch.rand(4).tolist()
        samples.append((own, shared))
    assert samples[0] == samples[1]
    return ranks.pipeline, *samples[0]


def test_own_and_shared_streams_of_ranks():
    samples = run_ranks(LAYOUT.processes, sample_twice)
    assert len({tuple(own) for _, own, _ in samples}) == 4
    assert len({(stage, tuple(shared)) for stage, _, shared in samples}) == 2
    assert not {tuple(own) for _, own, _ in samples} & {tuple(shared) for _, _, shared in samples}
