"""Ranks whose copies of a weight differ are found and named."""

import pytest
import torch

from megaptm.config import Layout
from megaptm.parallel.replicas import ReplicaError
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.ranks import run_ranks

DIVIDED, COPIED = "decoder.0.ffn.up.weight", "decoder.1.ffn_norm.weight"


def message_of(layout, rank, name, precision="fp32"):
    """Return the error after one bit of a weight is flipped on a rank; None if no error is raised."""
    engine = filled_engine(tiny("gpt2"), layout, ADAM, losses=losses_of("gpt2"), seed=7, precision=precision)
    engine.train_step(micro_batches(batch("gpt2", 0), layout, engine.ranks.data), step=0, lr=1e-3)
    engine.check_replicas()
    if torch.distributed.get_rank() == rank:
        [part] = [part for part in engine.optimizer.parts if part.placement.name == name]
        bits = part.replica.data.reshape(-1).view(torch.int32 if part.replica.element_size() == 4 else torch.int16)
        bits[0] ^= 1
    try:
        engine.check_replicas()
    except ReplicaError as error:
        return str(error)
    return None


LAYOUTS = {
    "DP2": Layout(microbatch=2, data=2),
    "DP4": Layout(microbatch=1, data=4),
    "DP4 distributed optimizer": Layout(microbatch=1, data=4, distributed_optimizer=True),
    "TP2": Layout(microbatch=4, tensor=2),
    "TP2xDP2": Layout(microbatch=2, tensor=2, data=2),
    "PP2xDP2": Layout(microbatch=2, pipeline=2, data=2),
}


@pytest.mark.parametrize(
    ("name", "rank", "weight", "precision", "named"),
    [
        ("DP2", 1, DIVIDED, "fp32", [0, 1]),
        ("DP4", 2, DIVIDED, "bf16", [2]),
        ("DP4 distributed optimizer", 3, COPIED, "bf16", [3]),
        ("TP2", 1, COPIED, "fp32", [0, 1]),
        ("TP2xDP2", 3, DIVIDED, "fp32", [1, 3]),
        ("TP2xDP2", 2, COPIED, "fp32", [2]),
        ("PP2xDP2", 0, DIVIDED, "fp32", [0, 1]),
    ],
)
def test_rank_with_a_flipped_bit_is_named(name, rank, weight, precision, named):
    layout = LAYOUTS[name]
    messages = run_ranks(layout.processes, message_of, layout, rank, weight, precision)
    assert len({*messages}) == 1
    assert messages[0].startswith("replicas of the weights differ: ")
    assert [number for number in range(4) if f"rank {number} " in messages[0]] == named
    assert messages[0].endswith(f"in {weight}")


def test_slices_of_tensor_ranks_are_no_replicas():
    """A change of one rank's slice of a divided weight is no deviation."""
    assert run_ranks(2, message_of, LAYOUTS["TP2"], 1, DIVIDED) == [None, None]
