"""A run of ELMo by the command line, and what it leaves: a folder for others, vectors of words, a loss."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import megaptm as library
from data_pipeline import commands
from megaptm.hub.bilm import from_bilm
from tests.forked import megaptm

CONFIG = Path(__file__).parents[2] / "configs/elmo/tiny.yaml"
WORDS = [f"{first}{last}" for first in ("ba", "do", "ki", "lu", "me") for last in ("r", "st", "n", "ple")]
SMALL = (
    *("model.width=12", "model.ffn=16", "model.filters=[[1, 4], [2, 6]]", "model.negatives=8", "model.dropout=0.1"),
    *("data.sequence=6", "train.batch=4", "layout.microbatch=2", "train.steps=4", "train.log_every=1"),
    *("train.threads=1", "track.enabled=false", "train.validate_batches=1", "checkpoint.every=1000", "data.workers=0"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("elmo"), np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 30)) for _ in range(60)]
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ("workers=0", "validation=0.2", "tokenizer.kind=words", "tokenizer.vocabulary=23")
    commands.build([str(place / "texts.jsonl"), f"out={place / 'corpus'}", *options], console=Console(quiet=True))
    megaptm("train", CONFIG, f"run={place / 'run'}", f"data.mix={{{place / 'corpus'}: 1}}", *SMALL)
    return place / "run"


def test_what_a_run_leaves_is_read(run, tmp_path):
    megaptm("export", "elmo", run, tmp_path)
    loaded = library.load(run)
    theirs = from_bilm(load_file(tmp_path / "weights.safetensors"), loaded.spec)
    weights = loaded.model.state_dict()
    assert all(weights[name].equal(tensor) for name, tensor in theirs.items())
    assert len(theirs) == len(weights) - 2, "all but the softmax, which is beside it"
    assert load_file(tmp_path / "softmax.safetensors")["W"].shape == (23, 12)
    assert json.loads((tmp_path / "options.json").read_text())["char_cnn"]["n_characters"] == 262
    assert len((tmp_path / "vocabulary.txt").read_text().split()) == 23
    one, other = loaded.layers(["a word never seen", "bar"])
    assert one.shape == (3, 4, 24)
    assert other.shape == (3, 1, 24)
    assert one[0, :, :12].equal(one[0, :, 12:])
    torch.testing.assert_close(loaded.layers("bar")[0], other)
    torch.testing.assert_close(loaded.encode(["bar"], pool="none")[0], other.mean(0))
    assert loaded.evaluate(rows=4).losses["bidirectional-lm"].asked == 24
