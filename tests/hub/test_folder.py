"""Folders as people have them are taken; what is wrong with one is told in a sentence, and none of its code is run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from megaptm.errors import UserError
from megaptm.hub.download import find_or_download
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from tests.models.tiny import tiny_model

FAMILIES = ("gpt2", "bert", "t5")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model of each family, in a folder of its name."""
    place = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        model = tiny_model(family)
        to_hugging_face(model.spec, dict(model.named_parameters()), None, place / family)
    return place


@pytest.fixture
def copied(folders: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: shutil.copytree(folders / family, tmp_path / family)


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        from_hugging_face(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what people have -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "architecture", "absent"),
    [
        ("gpt2", "GPT2Model", set()),
        ("bert", "BertForMaskedLM", {"head.next-sentence.pooler", "head.next-sentence.classify"}),
        (
            "bert",
            "BertModel",
            {"head.mlm.transform", "head.mlm.norm", "head.mlm.vocabulary", "head.next-sentence.classify"},
        ),
        ("t5", "T5Model", set()),
    ],
)
def test_a_model_without_its_heads_is_taken(
    family: str, architecture: str, absent: set[str], folders: Path, tmp_path: Path
) -> None:
    """Saved by transformers itself; what is there is there to the bit, what is absent is named."""
    getattr(transformers, architecture).from_pretrained(folders / family).save_pretrained(tmp_path / "model")
    found, whole = from_hugging_face(tmp_path / "model"), from_hugging_face(folders / family)
    assert {name.rpartition(".")[0] for name in found.absent} == absent
    assert found.weights.keys() | found.absent.keys() == whole.weights.keys()
    assert all(found.absent[name] == whole.weights[name].shape for name in found.absent)
    for name, weight in found.weights.items():
        assert weight.equal(whole.weights[name]), name


def test_several_files_with_an_index_are_one_model(folders: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForPreTraining.from_pretrained(folders / "bert")
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("model-*-of-*.safetensors"))) > 1
    found, whole = from_hugging_face(tmp_path / "model"), from_hugging_face(folders / "bert")
    assert all(whole.weights[name].equal(weight) for name, weight in found.weights.items())
    assert not found.absent


def test_names_of_the_first_release_are_known(copied: Callable[[str], Path], folders: Path) -> None:
    """As bert-base-uncased has them: gamma and beta, position ids, both names of what is tied."""
    folder = copied("bert")
    state = load_file(folder / "model.safetensors")
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    state["bert.embeddings.position_ids"] = torch.arange(24)[None]
    for name in [name for name in state if "LayerNorm" in name]:
        state[name.replace(".weight", ".gamma").replace(".bias", ".beta")] = state.pop(name)
    save_file(state, folder / "model.safetensors")
    found, whole = from_hugging_face(folder), from_hugging_face(folders / "bert")
    assert not found.absent
    assert all(whole.weights[name].equal(weight) for name, weight in found.weights.items())


def test_a_config_that_leaves_out_what_transformers_knows_is_enough(copied: Callable[[str], Path]) -> None:
    """T5's do not say how many layers the decoder has; GPT-2's may use the names that all models share."""
    file = copied("t5") / "config.json"
    config = json.loads(file.read_text())
    del config["num_decoder_layers"]
    file.write_text(json.dumps(config))
    assert from_hugging_face(file.parent).spec.size.layers == 2
    file = copied("gpt2") / "config.json"
    config = json.loads(file.read_text())
    config["num_hidden_layers"] = config.pop("n_layer")
    file.write_text(json.dumps(config))
    assert from_hugging_face(file.parent).spec.size.layers == 2


# --- what is refused --------------------------------------------------------------------------------------------------


def test_an_encoder_alone_is_no_t5(folders: Path, tmp_path: Path) -> None:
    transformers.T5EncoderModel.from_pretrained(folders / "t5").save_pretrained(tmp_path / "model")
    said = refused(tmp_path / "model")
    assert "is_encoder_decoder is False (t5 has True)" in said
    file = tmp_path / "model" / "config.json"
    change(file, is_encoder_decoder=True)
    said = refused(file.parent)
    assert "lacks weights of T5ForConditionalGeneration: decoder." in said
    assert said.endswith("give a complete checkpoint.")


def test_what_was_put_on_top_of_a_model_is_named(folders: Path, tmp_path: Path) -> None:
    transformers.BertForSequenceClassification.from_pretrained(folders / "bert").save_pretrained(tmp_path / "model")
    assert "has parameters that BertForPreTraining does not have: classifier.bias, classifier.weight" in refused(
        tmp_path / "model"
    )


def test_an_output_table_of_its_own_is_not_dropped(copied: Callable[[str], Path]) -> None:
    folder = copied("t5")
    state = load_file(folder / "model.safetensors")
    save_file(state | {"lm_head.weight": state["shared.weight"] + 1}, folder / "model.safetensors")
    assert "differs from shared.weight" in refused(folder)
    folder = copied("gpt2")
    state = load_file(folder / "model.safetensors")
    save_file(state | {"lm_head.weight": state["transformer.wte.weight"] + 1}, folder / "model.safetensors")
    assert "lm_head.weight differs from transformer.wte.weight" in refused(folder)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    assert refused(tmp_path / "missing").startswith(f"{tmp_path / 'missing'} does not exist: ")
    assert refused(tmp_path).startswith(f"{tmp_path} is empty: ")
    (tmp_path / "notes.txt").touch()
    assert refused(tmp_path).startswith(f"{tmp_path} has no config.json: ")
    assert refused(tmp_path / "notes.txt").startswith(f"{tmp_path / 'notes.txt'} is a file: ")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("\0\xff", "is not valid JSON"),
        ("[]", "config.json: input should be a valid dictionary"),
        ("{}", "model_type None cannot be imported"),
        ('{"model_type": ["gpt2"]}', "cannot be imported"),
    ],
)
def test_a_broken_config(written: str, said: str, copied: Callable[[str], Path]) -> None:
    folder = copied("gpt2")
    (folder / "config.json").write_text(written, encoding="latin-1")
    assert said in refused(folder)


@pytest.mark.parametrize(
    ("family", "values", "said"),
    [
        ("gpt2", {"n_layer": "2"}, "n_layer is '2'; it must be an integer from 1 to"),
        ("gpt2", {"n_layer": -1}, "n_layer is '-1'"),
        ("gpt2", {"n_layer": True}, "n_layer is 'True'"),
        ("gpt2", {"n_layer": 10**6}, "has 1,000,000 layers, but there are only 28 tensors"),
        ("gpt2", {"n_embd": 10**300}, "n_embd is '1000"),
        ("gpt2", {"n_embd": 64}, "transformer.wte.weight is [101, 32], but config.json needs [101, 64]"),
        ("gpt2", {"n_head": 5}, "n_head (5) does not divide n_embd (32)"),
        ("gpt2", {"n_head": {"a": 1}}, "n_head is"),
        ("gpt2", {"vocab_size": 100}, "is [101, 32], but config.json needs [100, 32]"),
        ("gpt2", {"resid_pdrop": "none"}, "resid_pdrop is 'none'; it must be a number from 0 to below 1"),
        ("bert", {"layer_norm_eps": float("nan")}, "layer_norm_eps is 'nan'"),
        ("bert", {"hidden_act": ["gelu"]}, "hidden_act is ['gelu'] (bert has 'gelu'); such a model cannot be imported"),
        ("bert", {"num_hidden_layers": 3}, "lacks weights of BertForPreTraining: bert.encoder.layer.2."),
        (
            "bert",
            {"num_hidden_layers": 1},
            "has parameters that BertForPreTraining does not have: bert.encoder.layer.1.",
        ),
        ("t5", {"d_kv": None}, "d_kv is 'None'"),
        ("t5", {"feed_forward_proj": "gated-gelu"}, "feed_forward_proj is 'gated-gelu'"),
    ],
)
def test_a_config_that_says_what_cannot_be(
    family: str, values: dict[str, Any], said: str, copied: Callable[[str], Path]
) -> None:
    folder = copied(family)
    change(folder / "config.json", **values)
    assert said in refused(folder)


def test_architectures_that_are_no_list_say_nothing(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    for said in (-1, 0.5, {"a": 1}, "BertModel", [7]):
        change(folder / "config.json", architectures=said)
        assert from_hugging_face(folder).spec.name == "bert"


def test_code_of_the_models_own_is_refused_unread(copied: Callable[[str], Path]) -> None:
    folder = copied("gpt2")
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    change(folder / "config.json", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
    assert "auto_map names code in the model's folder, which megaptm never runs" in refused(folder)
    change(folder / "config.json", auto_map=None)
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.Tokenizer", null]}}')
    assert "tokenizer_config.json: auto_map names code" in refused(folder)
    assert not (folder / "ran").exists()


def test_a_pickle_is_refused_with_the_way_to_convert_it(copied: Callable[[str], Path], folders: Path) -> None:
    folder = copied("bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    said = refused(folder)
    assert "only pickled weights, which can run code" in said
    command = said.split("`")[1]
    done = subprocess.run(command.replace("python", sys.executable, 1), shell=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found, whole = from_hugging_face(folder), from_hugging_face(folders / "bert")
    assert all(whole.weights[name].equal(weight) for name, weight in found.weights.items())


def test_damaged_weights(copied: Callable[[str], Path]) -> None:
    folder = copied("t5")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (b"", whole[:5], whole[:2000], whole[:-1], b"\xff" * 16 + whole[16:], whole[:8] + b"\0" * 200):
        file.write_bytes(damaged)
        assert refused(folder).startswith(f"{file} is damaged or cut off (")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    assert "git lfs pull" in refused(folder)
    file.unlink()
    assert refused(folder).startswith(f"{folder} has no model.safetensors: ")


def test_weights_of_another_kind(copied: Callable[[str], Path]) -> None:
    folder = copied("gpt2")
    file = folder / "model.safetensors"
    state = load_file(file)
    name = "transformer.h.0.attn.c_attn.weight"
    save_file(state | {name: state[name].to(torch.int8)}, file)
    assert f"{name} is int8; a quantized model cannot be trained" in refused(folder)
    save_file(state | {name: state[name][:-1].clone()}, file)
    assert f"{name} is [31, 96], but config.json needs [32, 96]" in refused(folder)
    save_file(state | {name: state[name] / 0}, file)
    assert f"{name} has NaN or infinite values; download it again" in refused(folder)
    save_file(state | {name: torch.full_like(state[name], 1e300, dtype=torch.float64)}, file)
    assert f"{name} has NaN or infinite values; download it again" in refused(folder)
    del state[name]
    save_file(state, file)
    assert f"lacks weights of GPT2LMHeadModel: {name}" in refused(folder)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": "../../etc/passwd"}, "'../../etc/passwd' is not a plain file name"),
        ({"a": "gone.safetensors"}, "names gone.safetensors, which is not there"),
        ({"a": 5}, "weight_map.a: input should be a valid string"),
        ([], "weight_map: input should be a valid dictionary"),
    ],
)
def test_a_wrong_index(table: Any, said: str, copied: Callable[[str], Path]) -> None:
    folder = copied("gpt2")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    assert said in refused(folder)


# --- the hub ----------------------------------------------------------------------------------------------------------


def test_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of the hub where a folder is meant: one that is here, one in a folder that is, or a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported").mkdir()
    monkeypatch.setattr("megaptm.hub.download._download", lambda name: pytest.fail(f"the hub was asked for {name}"))
    for source in ("exported", "exported/gpt2", "./gpt2", "/nowhere/gpt2", "~/gpt2", "a/b/c", "", "gpt2 "):
        assert find_or_download(source) == Path(source)
