"""Import of folders as published, and refusal of invalid ones without running their code."""

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
from megaptm.hub.tokenizer import read_tokenizer
from tests.models.tiny import tiny_model

FAMILIES = ("gpt2", "bert", "t5")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a complete model of each family."""
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        model = tiny_model(family)
        to_hugging_face(model.spec, dict(model.named_parameters()), None, folder / family)
    return folder


@pytest.fixture
def copy_folder(folders: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: shutil.copytree(folders / family, tmp_path / family)


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def import_error(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        from_hugging_face(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- accepted ---------------------------------------------------------------------------------------------------------


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
def test_import_without_heads(family: str, architecture: str, absent: set[str], folders: Path, tmp_path: Path) -> None:
    """Weights in the file are imported bit for bit, and missing modules are named."""
    getattr(transformers, architecture).from_pretrained(folders / family).save_pretrained(tmp_path / "model")
    imported, complete = from_hugging_face(tmp_path / "model"), from_hugging_face(folders / family)
    assert {name.rpartition(".")[0] for name in imported.absent} == absent
    assert imported.weights.keys() | imported.absent.keys() == complete.weights.keys()
    assert all(imported.absent[name] == complete.weights[name].shape for name in imported.absent)
    for name, weight in imported.weights.items():
        assert weight.equal(complete.weights[name]), name


def test_import_of_several_weight_files(folders: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForPreTraining.from_pretrained(folders / "bert")
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("model-*-of-*.safetensors"))) > 1
    imported, complete = from_hugging_face(tmp_path / "model"), from_hugging_face(folders / "bert")
    assert all(complete.weights[name].equal(weight) for name, weight in imported.weights.items())
    assert not imported.absent


def test_import_of_legacy_names(copy_folder: Callable[[str], Path], folders: Path) -> None:
    """Names of bert-base-uncased: gamma and beta, position ids, both names of tied parameters."""
    folder = copy_folder("bert")
    state = load_file(folder / "model.safetensors")
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    state["bert.embeddings.position_ids"] = torch.arange(24)[None]
    for name in [name for name in state if "LayerNorm" in name]:
        state[name.replace(".weight", ".gamma").replace(".bias", ".beta")] = state.pop(name)
    save_file(state, folder / "model.safetensors")
    imported, complete = from_hugging_face(folder), from_hugging_face(folders / "bert")
    assert not imported.absent
    assert all(complete.weights[name].equal(weight) for name, weight in imported.weights.items())


def test_import_with_default_fields(copy_folder: Callable[[str], Path]) -> None:
    """T5 configs may lack the number of decoder layers; GPT-2 configs may use the common field names."""
    file = copy_folder("t5") / "config.json"
    config = json.loads(file.read_text())
    del config["num_decoder_layers"]
    file.write_text(json.dumps(config))
    assert from_hugging_face(file.parent).spec.size.layers == 2
    file = copy_folder("gpt2") / "config.json"
    config = json.loads(file.read_text())
    config["num_hidden_layers"] = config.pop("n_layer")
    file.write_text(json.dumps(config))
    assert from_hugging_face(file.parent).spec.size.layers == 2


# --- refused ----------------------------------------------------------------------------------------------------------


def test_t5_encoder_is_refused(folders: Path, tmp_path: Path) -> None:
    transformers.T5EncoderModel.from_pretrained(folders / "t5").save_pretrained(tmp_path / "model")
    message = import_error(tmp_path / "model")
    assert "is_encoder_decoder is False (t5 has True)" in message
    file = tmp_path / "model" / "config.json"
    change(file, is_encoder_decoder=True)
    message = import_error(file.parent)
    assert "lacks weights of T5ForConditionalGeneration: decoder." in message
    assert message.endswith("give a complete checkpoint.")


def test_names_of_another_program_are_refused(copy_folder: Callable[[str], Path]) -> None:
    """`DistributedDataParallel` and `torch.compile` add a prefix to all names."""
    file = copy_folder("bert") / "model.safetensors"
    save_file({f"module.{name}": tensor for name, tensor in load_file(file).items()}, file)
    assert "none has a name of this class, such as bert.embeddings.word_embeddings.weight" in import_error(file.parent)


def test_quantized_model_is_refused(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("gpt2")
    change(folder / "config.json", quantization_config={"quant_method": "fp8"})
    state = load_file(folder / "model.safetensors")
    save_file(state | {"transformer.h.0.attn.c_attn.weight_scale_inv": torch.ones(1)}, folder / "model.safetensors")
    assert "quantization_config is of method 'fp8'; a quantized model cannot be trained" in import_error(folder)


def test_missing_index_is_named(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("gpt2")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    assert "no model.safetensors.index.json, which names its parts (model-00001-of-00002" in import_error(folder)


def test_adapter_is_refused(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("gpt2")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert "only an adapter: merge it into its model" in import_error(folder)


def test_stored_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    """The first files of Llama have them; `transformers` computes them."""
    model = tiny_model("llama")
    to_hugging_face(model.spec, dict(model.named_parameters()), None, tmp_path / "llama")
    file = tmp_path / "llama/model.safetensors"
    save_file(load_file(file) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, file)
    assert from_hugging_face(file.parent).spec.name == "llama"


@pytest.mark.parametrize(
    ("name", "problem"), [("missing", "does not exist"), ("file", "is a file"), ("empty", "has no tokenizer.json")]
)
def test_folder_without_tokenizer_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"{problem}: give a folder with the model's tokenizer.json"):
        read_tokenizer(tmp_path / name)


def test_unknown_head_is_refused(folders: Path, tmp_path: Path) -> None:
    transformers.BertForSequenceClassification.from_pretrained(folders / "bert").save_pretrained(tmp_path / "model")
    assert "has parameters that BertForPreTraining does not have: classifier.bias, classifier.weight" in import_error(
        tmp_path / "model"
    )


def test_untied_output_table_is_refused(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("t5")
    state = load_file(folder / "model.safetensors")
    save_file(state | {"lm_head.weight": state["shared.weight"] + 1}, folder / "model.safetensors")
    assert "differs from shared.weight" in import_error(folder)
    folder = copy_folder("gpt2")
    state = load_file(folder / "model.safetensors")
    save_file(state | {"lm_head.weight": state["transformer.wte.weight"] + 1}, folder / "model.safetensors")
    assert "lm_head.weight differs from transformer.wte.weight" in import_error(folder)


def test_output_table_that_the_config_ties_is_refused(tmp_path: Path) -> None:
    """The class of transformers 5 does not tie such tables, and recommends the same change."""
    model, folder = tiny_model("llama"), tmp_path / "llama"
    to_hugging_face(model.spec, dict(model.named_parameters()), None, folder)
    change(folder / "config.json", tie_word_embeddings=True)
    assert import_error(folder).endswith("for both: set tie_word_embeddings to false in its config.json.")


def test_folder_without_model_is_refused(tmp_path: Path) -> None:
    assert import_error(tmp_path / "missing").startswith(f"{tmp_path / 'missing'} does not exist: ")
    assert import_error(tmp_path).startswith(f"{tmp_path} is empty: ")
    (tmp_path / "notes.txt").touch()
    assert import_error(tmp_path).startswith(f"{tmp_path} has no config.json: ")
    assert import_error(tmp_path / "notes.txt").startswith(f"{tmp_path / 'notes.txt'} is a file: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("\0\xff", "is not valid JSON"),
        ("[]", "config.json: input should be a valid dictionary"),
        ("{}", "model_type None cannot be imported"),
        ('{"model_type": ["gpt2"]}', "cannot be imported"),
    ],
)
def test_invalid_config_is_refused(content: str, message: str, copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("gpt2")
    (folder / "config.json").write_text(content, encoding="latin-1")
    assert message in import_error(folder)


@pytest.mark.parametrize(
    ("family", "values", "message"),
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
def test_invalid_value_is_refused(
    family: str, values: dict[str, Any], message: str, copy_folder: Callable[[str], Path]
) -> None:
    folder = copy_folder(family)
    change(folder / "config.json", **values)
    assert message in import_error(folder)


def test_invalid_architectures_are_ignored(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("bert")
    for architectures in (-1, 0.5, {"a": 1}, "BertModel", [7]):
        change(folder / "config.json", architectures=architectures)
        assert from_hugging_face(folder).spec.name == "bert"


def test_model_code_is_refused(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("gpt2")
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    change(folder / "config.json", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
    assert "auto_map names code in the model's folder, which megaptm never runs" in import_error(folder)
    change(folder / "config.json", auto_map=None)
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.Tokenizer", null]}}')
    assert "tokenizer_config.json: auto_map names code" in import_error(folder)
    assert not (folder / "ran").exists()


def test_pickle_is_refused_with_conversion_command(copy_folder: Callable[[str], Path], folders: Path) -> None:
    folder = copy_folder("bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    message = import_error(folder)
    assert "only pickled weights, which can run code" in message
    command = message.split("`")[1]
    result = subprocess.run(command.replace("python", sys.executable, 1), shell=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    imported, complete = from_hugging_face(folder), from_hugging_face(folders / "bert")
    assert all(complete.weights[name].equal(weight) for name, weight in imported.weights.items())


def test_damaged_weights_are_refused(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("t5")
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for damaged in (
        b"",
        content[:5],
        content[:2000],
        content[:-1],
        b"\xff" * 16 + content[16:],
        content[:8] + b"\0" * 200,
    ):
        file.write_bytes(damaged)
        assert import_error(folder).startswith(f"{file} is damaged or cut off (")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    assert "git lfs pull" in import_error(folder)
    file.unlink()
    assert import_error(folder).startswith(f"{folder} has no model.safetensors: ")


def test_invalid_tensors_are_refused(copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("gpt2")
    file = folder / "model.safetensors"
    state = load_file(file)
    name = "transformer.h.0.attn.c_attn.weight"
    save_file(state | {name: state[name].to(torch.int8)}, file)
    assert f"{name} is int8; a quantized model cannot be trained" in import_error(folder)
    save_file(state | {name: state[name][:-1].clone()}, file)
    assert f"{name} is [31, 96], but config.json needs [32, 96]" in import_error(folder)
    save_file(state | {name: state[name] / 0}, file)
    assert f"{name} has NaN or infinite values; download it again" in import_error(folder)
    save_file(state | {name: torch.full_like(state[name], 1e300, dtype=torch.float64)}, file)
    assert f"{name} has NaN or infinite values; download it again" in import_error(folder)
    del state[name]
    save_file(state, file)
    assert f"lacks weights of GPT2LMHeadModel: {name}" in import_error(folder)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": "../../etc/passwd"}, "'../../etc/passwd' is not a plain file name"),
        ({"a": "gone.safetensors"}, "lists gone.safetensors, which is not in the folder"),
        ({"a": 5}, "weight_map.a: input should be a valid string"),
        ([], "weight_map: input should be a valid dictionary"),
    ],
)
def test_invalid_index_is_refused(table: Any, message: str, copy_folder: Callable[[str], Path]) -> None:
    folder = copy_folder("gpt2")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    assert message in import_error(folder)


# --- the hub ----------------------------------------------------------------------------------------------------------


def test_paths_are_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a path below an existing folder, and anything with the form of a path is not looked up on the hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported").mkdir()
    monkeypatch.setattr(
        "megaptm.hub.download._download_snapshot", lambda name: pytest.fail(f"the hub was asked for {name}")
    )
    for source in ("exported", "exported/gpt2", "./gpt2", "/nowhere/gpt2", "~/gpt2", "a/b/c", "", "gpt2 "):
        assert find_or_download(source) == Path(source)
