"""A run whose replicas differ ends before it saves, and continues from the last step where they agreed."""

import pytest

from tests.drills.program import arguments, checkpoints, losses, resumed_at
from tests.forked import megaptm

FLIP = '''
import os

import torch

import megaptm
from megaptm.parallel.engine import Engine

train_step = Engine.train_step


def flip_a_bit(engine, *arguments, step, **options):
    result = train_step(engine, *arguments, step=step, **options)
    if step + 1 == int(os.environ["FLIP_AT"]):
        bits = engine.optimizer.parts[0].replica.data.view(torch.int32)
        if os.environ["FLIP_TO"] == "nan":
            bits[0, 0] = -1
        else:
            bits[0, 0] ^= 1 << 20
    return result


class Flip(megaptm.Callback):
    """Flip a bit of a weight: callbacks exist on rank 0 only."""

    def on_run_start(self, run):
        Engine.train_step = flip_a_bit
'''


@pytest.mark.parametrize(
    ("flip_to", "message"),
    [("number", "after step 6, which is not saved"), ("nan", "when step 6 was rejected")],
)
def test_run_with_a_flipped_bit_continues_from_the_last_equal_step(
    real_corpus, tmp_path, monkeypatch, flip_to, message
):
    """A NaN of one replica is found in the next step; no batch is skipped because of it."""
    (tmp_path / "flip.py").write_text(FLIP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FLIP_TO", flip_to)
    shared = ("layout.data=2", "train.steps=8", "checkpoint.every=2", "train.check_replicas_every=3")
    shared += ("train.spikes.action=roll-back",)

    def train(name, flip_at, code=0):
        monkeypatch.setenv("FLIP_AT", str(flip_at))
        keys = (*shared, "callbacks=[flip:Flip]")
        return megaptm("train", *arguments("gpt2", tmp_path / name, real_corpus("byte-bpe"), *keys), code=code)

    output = train("run", 5, code=1)
    assert "replicas of the weights differ: rank 0 on " in output
    assert message in output
    assert "Traceback" not in output
    assert checkpoints(tmp_path / "run") == [2, 4]
    train("run", 0)
    assert resumed_at(tmp_path / "run") == [4]
    train("whole", 0)
    last = {step: values[-1:] for step, values in losses(tmp_path / "run").items()}
    assert last == losses(tmp_path / "whole")
