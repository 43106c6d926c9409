"""Read the model of a run without training, and export it."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.commands.export import export_group
from megaptm.config import config_to_yaml, load_config, resolve_model
from megaptm.errors import UserError
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.run.checkpoint import open_checkpoint
from megaptm.tokenizers import train_tokenizer_on_texts

TINY = Path(__file__).parents[2] / "configs/gpt2/tiny.yaml"


@pytest.fixture
def config():
    shape = ["model.layers=2", "model.width=32", "model.heads=2", "model.ffn=64", "model.vocabulary=300"]
    return load_config(TINY, shape)


@pytest.fixture
def run(config, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config_to_yaml(config))
    return run


@pytest.fixture
def saved(config, run):
    """Return a run with one checkpoint, at step 7, and its model."""
    model = Model(resolve_model(config)).eval()
    init_weights(model, seed=3)
    store = CheckpointStore(run, fence=lambda: True)
    store.prepare(7)
    store.write(
        7,
        0,
        [
            TensorPiece(f"weight/{name}", tuple(value.shape), (0,) * value.dim(), tuple(value.shape), value.detach())
            for name, value in model.named_parameters()
        ],
    )
    store.commit(7, {}, ranks=1)
    text = "the cat sat on the mat and looked at the other cat. " * 50
    train_tokenizer_on_texts("byte-bpe", [text], vocabulary=300).save(run / "tokenizer")
    return run, model


def test_checkpoint_has_all_weights(saved):
    run, model = saved
    checkpoint = open_checkpoint(run)
    weights = checkpoint.weights()
    assert checkpoint.step == 7
    assert dict.fromkeys(weights) == dict.fromkeys(name for name, _ in model.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in model.named_parameters())


def test_exported_logits_equal_transformers(saved, tmp_path):
    transformers = pytest.importorskip("transformers")
    run, model = saved
    done = CliRunner().invoke(export_group, ["hf", str(run), str(tmp_path / "out")], catch_exceptions=False)
    assert done.output.startswith(f"step 7 of {run} is in {tmp_path / 'out'}; in Python:\n")
    assert f"transformers.GPT2LMHeadModel.from_pretrained('{tmp_path / 'out'}')" in done.output
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("the mat", return_tensors="pt")["input_ids"]
    positions = torch.arange(tokens.shape[1])[None]
    batch = {"tokens": tokens, "positions": positions, "document_ids": torch.ones_like(tokens)}
    with torch.no_grad():
        logits = model.logits(batch)["lm"][..., :300]
        torch.testing.assert_close(reference(tokens).logits, logits, rtol=1e-4, atol=1e-5)


def test_run_without_a_checkpoint_is_refused(run):
    with pytest.raises(UserError, match="has no checkpoint yet"):
        open_checkpoint(run)


def test_step_without_a_checkpoint_is_refused(saved):
    with pytest.raises(UserError, match="has no checkpoint of step 8"):
        open_checkpoint(saved[0], step=8)


def test_earlier_phase_has_its_own_attention(tmp_path):
    """A later phase may stretch rotary positions; weights of the first phase were trained without that."""
    config = load_config(TINY.parents[1] / "llama/tiny.yaml", ["model.vocabulary=300"])
    present = load_config(
        TINY.parents[1] / "llama/tiny.yaml", ["model.vocabulary=300", "model.attention.rope_base=160000.0"]
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config_to_yaml(present))
    store = CheckpointStore(run, fence=lambda: True)
    store.prepare(7)
    store.write(7, 0, [])
    store.commit(7, {"config": config.model_dump(mode="json")}, ranks=1)
    checkpoint = open_checkpoint(run, step=7)
    assert checkpoint.spec == resolve_model(config) != resolve_model(present)
