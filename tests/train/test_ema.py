"""Running mean of the weights of a run: saved, continued on another layout, evaluated and exported."""

import json

import pytest
import torch
from safetensors.torch import load_file

from megaptm.errors import EXIT_USER_ERROR
from megaptm.run.checkpoint import open_checkpoint
from tests.drills.program import arguments, resumed_at
from tests.forked import megaptm

DECAY = 0.8
SHARED = (f"optimizer.ema_decay={DECAY}", "train.steps=6", "checkpoint.every=1", "checkpoint.keep=10")


def train(run, corpus, *more, code=0):
    megaptm("train", *arguments("gpt2", run, corpus, *SHARED, *more), code=code)
    return run


def evaluate(run, *options):
    """Return the results of `megaptm evaluate`, which follow its messages."""
    output = megaptm("evaluate", run, "--json", *options)
    return json.JSONDecoder().raw_decode(output[output.index("{") :])[0]


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    return train(tmp_path_factory.mktemp("ema") / "run", corpus)


def test_mean_is_that_of_the_saved_weights(run):
    """It starts with the weights after the first update."""
    mean = dict(open_checkpoint(run, step=1).weights())
    for step in range(2, 7):
        for name, weight in open_checkpoint(run, step=step).weights().items():
            mean[name] = DECAY * mean[name] + (1 - DECAY) * weight
        saved = open_checkpoint(run, step=step, ema=True).weights()
        for name, value in mean.items():
            torch.testing.assert_close(saved[name], value, rtol=1e-5, atol=1e-7)


def test_mean_continues_on_another_layout(run, corpus, tmp_path):
    cut = tmp_path / "cut"
    train(cut, corpus, "layout.data=2", "layout.distributed_optimizer=true", "train.stop_at=3", code=75)
    train(cut, corpus, "layout.tensor=2")
    assert resumed_at(cut) == [3]
    continued, uninterrupted = (open_checkpoint(path, ema=True).weights() for path in (cut, run))
    for name, value in uninterrupted.items():
        torch.testing.assert_close(continued[name], value, rtol=1e-4, atol=1e-6)


def test_mean_is_exported_and_evaluated(run, tmp_path):
    for name, options in (("weights", ()), ("mean", ("--ema",))):
        megaptm("export", "hf", run, tmp_path / name, *options)
    name = "transformer.wte.weight"
    weights, mean = (load_file(tmp_path / kind / "model.safetensors")[name] for kind in ("weights", "mean"))
    assert not torch.equal(weights, mean)
    assert torch.equal(mean[:512], open_checkpoint(run, ema=True).weights()["embed.token.weight"][:512])
    assert evaluate(run) != evaluate(run, "--ema")


def test_run_without_a_mean_is_refused(corpus, tmp_path):
    run = tmp_path / "run"
    megaptm("train", *arguments("gpt2", run, corpus, "train.steps=1"))
    output = megaptm("evaluate", run, "--ema", code=EXIT_USER_ERROR)
    assert "has no running mean of the weights (--ema): it was trained without optimizer.ema_decay." in output


def test_mean_may_start_on_resume(corpus, tmp_path):
    run = tmp_path / "run"
    words = arguments("gpt2", run, corpus, "train.steps=4")
    megaptm("train", *words, "train.stop_at=2", code=75)
    megaptm("train", *words, "optimizer.ema_decay=0.5", "--change")
    weights, mean = (open_checkpoint(run, step=4, ema=ema).weights() for ema in (False, True))
    assert not torch.equal(weights["embed.token.weight"], mean["embed.token.weight"])
