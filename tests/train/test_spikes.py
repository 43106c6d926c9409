"""Runs that skip spikes, or return to a checkpoint because of them."""

import pytest

from megaptm.config import config_to_yaml, load_config, load_run_config
from megaptm.errors import UserError
from megaptm.resilience.events import Events, read_events
from megaptm.run.back import roll_back
from megaptm.run.folder import CONFIG
from tests import ROOT
from tests.drills.program import arguments, finish, losses, resumed_at
from tests.forked import megaptm

# With hardly any learning, a loss above the mean is called a spike.
SKIPS = (
    "train.spikes={action: skip-step, sigmas: 0.3, window: 16}",
    "optimizer.lr=1e-7",
    "train.steps=24",
    "layout.data=2",
)


def skipped_steps(run):
    return [event["step"] for event in read_events(run) if event["kind"] == "spike" and event["skipped"]]


def test_resumed_run_skips_the_same_steps(real_corpus, tmp_path):
    def train(name, *more, code=0):
        megaptm("train", *arguments("gpt2", tmp_path / name, real_corpus("byte-bpe"), *SKIPS, *more), code=code)
        return tmp_path / name

    uninterrupted = train("whole")
    steps = skipped_steps(uninterrupted)
    assert steps
    assert min(steps) > 8
    assert not {*steps} & losses(uninterrupted).keys()
    assert [event["samples"] for event in read_events(uninterrupted) if event["kind"] == "spike"] == [
        [12 * (step - 1), 12 * step - 1] for step in steps
    ]
    train("cut", f"train.stop_at={steps[0]}", code=75)
    cut = train("cut", "layout.data=1", "layout.tensor=2")
    assert resumed_at(cut) == [steps[0]]
    assert skipped_steps(cut) == steps


def returns(run):
    return [event for event in read_events(run) if event["kind"] == "back"]


ROLLS_BACK = (
    "train.spikes={action: roll-back, sigmas: 1.8, window: 16}",
    "optimizer.lr=1e-7",
    "train.steps=18",
    "layout.data=2",
    "checkpoint.every=4",
    "checkpoint.keep=9",
)


def test_run_rolls_back_before_a_spike_and_skips_its_batches(real_corpus, tmp_path):
    def words(name, *more):
        return ("train", *arguments("gpt2", tmp_path / name, real_corpus("byte-bpe"), *ROLLS_BACK, *more))

    run = tmp_path / "rolled"
    done = finish(*words("rolled"))
    assert done.returncode == 0, done.stderr
    [back] = returns(run)
    skips = {back["step"]: back["from_step"] - back["step"]}
    assert back["skip"] == skips[back["step"]]
    assert load_run_config(run / CONFIG).train.skip_batches == skips
    assert f"Starting all ranks again from the checkpoint of step {back['step']}." in done.stderr
    last = {step: values[-1:] for step, values in losses(run).items()}
    # Started with the same skipped batches, a run has no spike.
    megaptm(*words("never", f"train.skip_batches={skips}"))
    assert returns(tmp_path / "never") == []
    assert losses(tmp_path / "never") == last
    # Launchers that repeat the command, as torchrun and srun do, name the config from before the spike.
    megaptm(*words("repeated"), code=75)
    megaptm(*words("repeated"))
    assert {step: values[-1:] for step, values in losses(tmp_path / "repeated").items()} == last


POISON = """
import megaptm
import torch
from megaptm.parallel.engine import Engine

forward_backward = Engine._forward_backward


def poison(engine, *arguments, step):
    result = forward_backward(engine, *arguments, step=step)
    if step == 13 and torch.distributed.get_rank() == 0:
        engine.optimizer.parts[0].parameter.main_grad.view(-1)[0] = torch.nan
    return result


class Poison(megaptm.Callback):
    def on_run_start(self, run):
        Engine._forward_backward = poison
"""


def test_run_rolls_back_before_a_nan(real_corpus, tmp_path, monkeypatch):
    (tmp_path / "poison.py").write_text(POISON)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    words = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *ROLLS_BACK, "train.spikes.sigmas=99")
    megaptm("train", *words, "callbacks=[poison:Poison]", code=75)
    [back] = returns(tmp_path / "run")
    assert (back["step"], back["from_step"]) == (12, 14)
    assert back["spike"].startswith("loss 6.")
    assert back["spike"].endswith(", gradient norm nan")
    assert back["samples"] == [12 * 12, 14 * 12 - 1]


def test_run_ends_after_three_returns_to_a_checkpoint(tmp_path):
    config = load_config(ROOT / "configs/gpt2/tiny.yaml", ["train.skip_batches={8: 2}"])
    (tmp_path / CONFIG).write_text(config_to_yaml(config))
    with Events(tmp_path) as events:
        spike = {"step": 8, "spike": "loss 9", "samples": (96, 107), "events": events}
        for from_step in (9, 10, 11):
            roll_back(tmp_path, from_step=from_step, **spike)
        assert load_run_config(tmp_path / CONFIG).train.skip_batches == {8: 2 + 1 + 2 + 3}
        with pytest.raises(UserError, match="has returned to the checkpoint of step 8 3 times"):
            roll_back(tmp_path, from_step=9, **spike)
        with pytest.raises(UserError, match="no checkpoint to return to"):
            roll_back(tmp_path, from_step=9, **spike | {"step": 0})


def test_run_does_not_skip_all_text_since_a_full_disk(tmp_path):
    (tmp_path / CONFIG).write_text(config_to_yaml(load_config(ROOT / "configs/gpt2/tiny.yaml")))
    with Events(tmp_path) as events:
        spike = {"spike": "loss 9", "samples": (96, 107), "events": events}
        roll_back(tmp_path, step=8, from_step=20, failed_saves=2, **spike)
        with pytest.raises(UserError, match="does not skip 9,992 batches: 3 checkpoints after that of step 8 could"):
            roll_back(tmp_path, step=8, from_step=10_000, failed_saves=3, **spike)
