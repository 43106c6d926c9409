"""Run of ELMo: training, export, import, evaluation."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from safetensors.torch import load_file, save_file

import megaptm as library
from data_pipeline import commands
from megaptm.__main__ import main
from megaptm.errors import UserError
from megaptm.families.elmo.bilm import from_bilm
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
    folder, rng = tmp_path_factory.mktemp("elmo"), np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 30)) for _ in range(60)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ("workers=0", "validation=0.2", "tokenizer.kind=words", "tokenizer.vocabulary=23")
    commands.run_build_command(
        [str(folder / "texts.jsonl"), f"out={folder / 'corpus'}", *options], console=Console(quiet=True)
    )
    megaptm("train", CONFIG, f"run={folder / 'run'}", f"data.mix={{{folder / 'corpus'}: 1}}", *SMALL)
    return folder / "run"


@pytest.mark.parametrize("format_", ["safetensors", "hdf5"])
def test_elmo_export_and_import_are_bit_identical(run, tmp_path, format_):
    """With the softmax, and like released models: without it, with other file names, and with a plain list of words."""
    if format_ == "hdf5":
        pytest.importorskip("h5py")
    exported = tmp_path / "exported"
    megaptm("export", "elmo", run, exported, "--format", format_)
    assert f"is step 0 of {tmp_path / 'again'} (elmo/custom" in megaptm("import", "elmo", exported, tmp_path / "again")
    loaded, again = library.load(run), library.load(tmp_path / "again")
    weights = loaded.model.state_dict()
    assert all(weights[name].equal(tensor) for name, tensor in again.model.state_dict().items())
    assert again.spec.size == loaded.spec.size
    assert again.tokenizer.fingerprint == loaded.tokenizer.fingerprint

    (exported / "softmax.safetensors").unlink()
    (exported / "tokenizer.json").unlink()
    for file, name in ((f"weights.{format_}", f"big_weights.{format_}"), ("options.json", "big_options.json")):
        (exported / file).rename(exported / name)
    output = megaptm("import", "elmo", exported, tmp_path / "released", "train.steps=3")
    assert "has no head.bidirectional-lm.table, head.bidirectional-lm.vocabulary: initialized" in output
    released = library.load(tmp_path / "released")
    assert released.tokenizer.vocabulary == 23
    assert released.tokenizer.encode("bar unheard").tolist() == loaded.tokenizer.encode("bar unheard").tolist()
    torch.testing.assert_close(released.layers("bar done")[0], loaded.layers("bar done")[0], rtol=0, atol=0)


def test_hdf5_export_has_the_published_names(run, tmp_path):
    h5py = pytest.importorskip("h5py")
    megaptm("export", "elmo", run, tmp_path, "--format", "hdf5")
    weights = library.load(run).model.state_dict()
    with h5py.File(tmp_path / "weights.hdf5") as file:
        assert file["char_embed"].shape == (261, 16)
        assert file["CNN"]["W_cnn_1"].shape == (1, 2, 16, 6)
        cell = file["RNN_1"]["RNN"]["MultiRNNCell"]["Cell0"]["LSTMCell"]
        projection = weights["backwards.0.recurrent.projection.weight"].numpy()
        assert (projection == cell["W_P_0"][...].T).all()
        assert cell["W_0"].shape == (24, 64)
    assert not (tmp_path / "weights.safetensors").exists()


def test_elmo_run_is_exported_encoded_and_evaluated(run, tmp_path):
    megaptm("export", "elmo", run, tmp_path)
    loaded = library.load(run)
    exported = from_bilm(load_file(tmp_path / "weights.safetensors"), loaded.spec)
    weights = loaded.model.state_dict()
    assert all(weights[name].equal(tensor) for name, tensor in exported.items())
    assert len(exported) == len(weights) - 2, "all but the softmax, which is beside it"
    assert load_file(tmp_path / "softmax.safetensors")["W"].shape == (23, 12)
    assert json.loads((tmp_path / "options.json").read_text())["char_cnn"]["n_characters"] == 262
    assert len((tmp_path / "vocabulary.txt").read_text().split()) == 23
    sentence, word = loaded.layers(["a word never seen", "bar"])
    assert sentence.shape == (3, 4, 24)
    assert word.shape == (3, 1, 24)
    assert sentence[0, :, :12].equal(sentence[0, :, 12:])
    torch.testing.assert_close(loaded.layers("bar")[0], word)
    torch.testing.assert_close(loaded.encode(["bar"], pool="none")[0], word.mean(0))
    assert loaded.evaluate(rows=4).losses["bidirectional-lm"].num_labels == 24


def test_uses_and_options_of_other_families_are_refused(run):
    loaded = library.load(run)
    with pytest.raises(UserError, match=r"elmo has no `zero_shot`, which is for models of images and texts \(CLIP\)\."):
        loaded.zero_shot(["a bar"])
    assert not hasattr(loaded, "no_method")
    result = CliRunner().invoke(main, ["evaluate", str(run), "--word", "bar"])
    assert "--word does not apply to a model of elmo: remove it." in result.output


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("options.json", "{}", r"options\.json: lstm: field required: give the options\.json"),
        ("options.json", "relu -> tanh", "char_cnn.activation is tanh, but must be relu"),
        (
            "options.json",
            '"n_layers": 2 -> "n_layers": 1000000',
            "lstm.n_layers: input should be less than or equal to",
        ),
        (
            "options.json",
            '"dim": 16, -> "dim": 18,',
            r"LSTMCell/B has shape \(64,\), but options and words need \(72,\)",
        ),
        ("weights.safetensors", None, r"has no \*weights\.hdf5: add weights\.hdf5, or weights\.safetensors"),
        ("weights.safetensors", "cut off", "is damaged or cut off"),
    ],
)
def test_import_of_invalid_elmo_folder_is_refused(run, tmp_path, file, content, sentence):
    """`before -> after` replaces text of the file."""
    folder = tmp_path / "exported"
    megaptm("export", "elmo", run, folder)
    if content is None:
        (folder / file).unlink()
    elif " -> " in content:
        (folder / file).write_text((folder / file).read_text().replace(*content.split(" -> ")))
    else:
        (folder / file).write_text(content)
    again = tmp_path / "again"
    output = megaptm("import", "elmo", folder, again, code=2)
    assert re.search(sentence, output), output
    assert not again.exists()


def test_import_of_nan_weights_is_refused(run, tmp_path):
    folder, again = tmp_path / "exported", tmp_path / "again"
    megaptm("export", "elmo", run, folder)
    weights = load_file(folder / "weights.safetensors")
    weights["char_embed"][5, 3] = float("nan")
    save_file(weights, folder / "weights.safetensors")
    output = megaptm("import", "elmo", folder, again, code=2)
    assert re.search(r"weights\.safetensors: char_embed has NaN or infinite values: download the file again", output), (
        output
    )
    assert not again.exists()
