"""`megaptm import hf`: its output, overrides, and initialization from models of other families."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import megaptm
from megaptm.checkpoint.store import CheckpointStore
from megaptm.commands.export import export_group
from megaptm.commands.imports import import_group
from megaptm.config import load_config, resolve_model
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.families.longformer.spec import WindowSpec
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import check_text_end, import_run
from megaptm.hub.imported_weights import ImportedModel
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.run.compatibility import compatibility_record, refuse_other_model
from megaptm.spec import ModelSpec, Size, change
from megaptm.tokenizers import train_tokenizer_on_texts
from tests.commands import run_command
from tests.hub.exported import ExportedTiny, export_tiny
from tests.models.vision import clip_model


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a BART whose dropouts are all 0.1."""
    return export_tiny("bart", tmp_path_factory.mktemp("bart"), vocabulary=300, dropout=0.1).folder


def set_config(folder: Path, **rates: Any) -> None:
    """Change fields of a folder's config."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **rates}))


@pytest.mark.parametrize(
    ("rates", "overrides", "message"),
    [
        ({"attention_dropout": 0.0, "activation_dropout": 0.1}, [], "attention_dropout 0.0: {here}0.1"),
        (
            {"attention_dropout": 0.0, "activation_dropout": 0.05},
            ["model.dropout=0.2"],
            "attention_dropout 0.0 and activation_dropout 0.05: {here}0.2",
        ),
        ({"attention_dropout": 0.1, "activation_dropout": 0.1}, [], None),
    ],
)
def test_differing_dropouts_are_reported(
    bart: Path, tmp_path: Path, rates: dict[str, float], overrides: list[str], message: str | None
) -> None:
    set_config(bart, **rates)
    first, *_ = run_command(import_group, "hf", bart, tmp_path / "run", *overrides).splitlines()
    if message is None:
        assert first.startswith(f"{bart} is step 0 of {tmp_path}/run")
    else:
        here = "here one rate applies to all, model.dropout="
        assert first == f"{bart} was trained with {message.format(here=here)}"


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> ExportedTiny:
    return export_tiny("roberta", tmp_path_factory.mktemp("roberta"), vocabulary=300)


@pytest.mark.parametrize(("family", "context"), [("longformer", 4096), ("bigbird", 4096)])
def test_sparse_model_from_roberta(family: str, context: int, roberta: ExportedTiny, tmp_path: Path) -> None:
    """The command initializes a Longformer or BigBird."""
    run_command(import_group, "hf", roberta.folder, tmp_path / "run", f"model.family={family}")
    loaded = megaptm.load(tmp_path / "run")
    assert (loaded.spec.name, loaded.spec.context) == (family, context)
    assert loaded.model.embed.token.weight.equal(roberta.model.embed.token.weight)


def test_led_from_bart(bart: Path, tmp_path: Path) -> None:
    """The default sequence length is the number of decoder positions."""
    run_command(import_group, "hf", bart, tmp_path / "run", "model.family=led")
    loaded = megaptm.load(tmp_path / "run")
    assert (loaded.spec.name, loaded.spec.context, loaded.config.data.sequence) == ("led", 16_384, 24)


def test_unimo_from_roberta(roberta: ExportedTiny, tmp_path: Path) -> None:
    """UNIMO is initialized from RoBERTa; the detector is an override, since the files have none."""
    overrides = ["model.family=unimo", "model.detector=[24, 17]"]
    first, second, *_ = run_command(import_group, "hf", roberta.folder, tmp_path / "run", *overrides).splitlines()
    assert "has no embed.region.project, embed.region.box, embed.region.norm, head.mrfr" in first
    assert second.startswith(f"{roberta.folder} is step 0 of {tmp_path}/run (unimo/custom")
    config = load_config(tmp_path / "run/config.yaml")
    assert (config.model.detector, config.model.context, config.data.document_mask) == ((24, 17), 24, False)
    assert isinstance(config.objective, dict)
    assert config.objective["classes"] == {
        "task": "masked-areas",
        "share": 5,
        "target": "distribution",
        "image_only": True,
        "features": 24,
        "classes": 17,
    }
    for detector in ("24", "[0, 17]"):
        with pytest.raises(UserError, match=r"must be \[FEATURES,CLASSES\], two positive integers"):
            import_run(str(roberta.folder), tmp_path / "other", ["model.family=unimo", f"model.detector={detector}"])


def test_led_context_and_window(bart: Path, tmp_path: Path) -> None:
    """BART's 24 positions are repeated, and the run continues with any window."""
    overrides = ["model.family=led", "model.context=60", "model.attention.window=[8, 4]"]
    run_command(import_group, "hf", bart, tmp_path / "run", *overrides)
    loaded, imported = megaptm.load(tmp_path / "run"), from_hugging_face(bart)
    assert (loaded.spec.context, loaded.spec.context_of("decoder")) == (60, 24)
    assert loaded.spec.family.first_block.attentions == (WindowSpec(window=8), WindowSpec(window=4))
    table = loaded.model.embed.position.weight
    assert table.equal(imported.weights["embed.position.weight"][2 + torch.arange(60) % 24])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.family=led", "model.attention.window=7"], r"model.attention.window \(7\) must be even"),
        (
            ["model.family=led", "model.context=0"],
            "model.context=0 must be a positive integer: give the number of positions",
        ),
        (["model.family=led", "model.attention.block_size=4"], "model.attention.block_size=4: the files in"),
        (["model.attention.window=8"], "model.attention.window=8: the files in"),
        (
            ["model.context=60"],
            r"model.context \(60\): the files of a bart determine its number of positions; only",
        ),
    ],
)
def test_invalid_override_is_refused(bart: Path, tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_run(str(bart), tmp_path / "run", overrides)
    assert not (tmp_path / "run").exists()


def save_as(model_class: str, folder: Path, target: Path) -> Path:
    """Save the model in a folder as another class of transformers, without its tokenizer."""
    getattr(transformers, model_class).from_pretrained(folder).save_pretrained(target)
    return target


@pytest.mark.parametrize("model_class", ["BertForMaskedLM", "BertModel"])
def test_objective_needs_no_missing_head(
    model_class: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    bert = export_tiny("bert", tmp_path_factory.mktemp("bert"), vocabulary=300)
    source = save_as(model_class, bert.folder, tmp_path / "theirs")
    imported = import_run(str(source), tmp_path / "run", tokenizer=bert.folder)
    assert imported.config.objective == "masked-lm"
    assert import_run(str(bert.folder), tmp_path / "whole").config.objective == "masked-lm-next-sentence"


def test_unused_pooler_round_trip(tmp_path: Path) -> None:
    """BigBird's pooler is not pre-trained, but exported again."""
    exported = export_tiny("bigbird", tmp_path, vocabulary=300)
    reference = transformers.BigBirdForMaskedLM.from_pretrained(exported.folder)
    reference.save_pretrained(tmp_path / "theirs")
    output = run_command(import_group, "hf", tmp_path / "theirs", tmp_path / "run", "--tokenizer", exported.folder)
    assert "has weights that no objective here trains: bert.pooler.bias, bert.pooler.weight" in output
    run_command(export_group, "hf", tmp_path / "run", tmp_path / "again")
    state = load_file(tmp_path / "again/model.safetensors")
    assert state["bert.pooler.weight"].equal(reference.bert.pooler.weight)
    assert all(state[name].equal(tensor) for name, tensor in load_file(tmp_path / "theirs/model.safetensors").items())


def test_import_without_tokenizer(tmp_path: Path) -> None:
    exported = export_tiny("gpt2", tmp_path, vocabulary=300)
    source = save_as("GPT2LMHeadModel", exported.folder, tmp_path / "theirs")
    output = run_command(import_group, "hf", source, tmp_path / "run")
    assert "tokenizer=FOLDER_OF_ITS_TOKENIZER" in output
    assert not (tmp_path / "run/tokenizer").exists()
    checkpoint = CheckpointStore(tmp_path / "run").load(0)
    refuse_other_model(checkpoint, compatibility_record(from_hugging_face(source).spec, exported.tokenizer.fingerprint))
    message = run_command(export_group, "hf", tmp_path / "run", tmp_path / "again")
    assert not (tmp_path / "again/tokenizer.json").exists()
    assert "AutoTokenizer" not in message
    assert "warning: the run has no tokenizer yet, so the export has none" in message
    run_command(import_group, "hf", source, tmp_path / "other", "--tokenizer", exported.folder)
    assert megaptm.load(tmp_path / "other").tokenizer.fingerprint == exported.tokenizer.fingerprint
    with pytest.raises(UserError, match=r"has no tokenizer.json: copy the model's tokenizer into the folder"):
        megaptm.load(source)


def test_initialized_mask_decoder_is_reported(tmp_path: Path) -> None:
    exported = export_tiny("deberta-v2", tmp_path, vocabulary=300)
    source = save_as("DebertaV2ForMaskedLM", exported.folder, tmp_path / "theirs")
    first, *_ = run_command(import_group, "hf", source, tmp_path / "run", "--tokenizer", exported.folder).splitlines()
    assert first == (
        f"{source} has no encoder.place_table: transformers has no mask decoder, but megaptm's deberta-v2 has "
        "one. It is initialized anew, so logits of masked tokens differ from transformers"
    )


@pytest.mark.parametrize(
    ("end_id", "message"),
    [
        (7, r"text_config.eos_token_id is 7, but the tokenizer in .* ends texts with id 299, so transformers"),
        (2, None),
        (299, None),
    ],
)
def test_end_id_of_config_and_tokenizer(end_id: int, message: str | None, tmp_path: Path) -> None:
    """For id 2, `CLIPTextModel` takes the largest id of a text as its end, as in its first release."""
    tokenizer = train_tokenizer_on_texts("byte-bpe", ["the cat sat on the mat"] * 9, vocabulary=300, specials="clip")
    tokenizer.save(tmp_path / "tokenizer")
    model = clip_model()
    assert tokenizer.special.end == tokenizer.vocabulary - 1
    spec = replace(model.spec, vocabulary=tokenizer.vocabulary)
    init_weights(model := Model(spec), seed=0)
    to_hugging_face(spec, dict(model.named_parameters()), tmp_path / "tokenizer", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    end = tokenizer.special.end
    config["text_config"]["eos_token_id"] = end if end_id == 299 else end_id
    (tmp_path / "out/config.json").write_text(json.dumps(config))
    if message is None:
        import_run(str(tmp_path / "out"), tmp_path / "run")
        return
    with pytest.raises(UserError, match=message.replace("299", str(end))):
        import_run(str(tmp_path / "out"), tmp_path / "run")


def test_legacy_end_id_must_be_the_largest(tmp_path: Path) -> None:
    tokenizer = train_tokenizer_on_texts("byte-bpe", ["the cat sat on the mat"] * 9, vocabulary=300, specials="roberta")
    model = replace(ImportedModel(clip_model().spec, {}, {}), text_end=2)
    with pytest.raises(UserError, match=r"ends texts with id 2 and has ids up to \d+, so such a model cannot be"):
        check_text_end(model, tokenizer, tmp_path)


def test_import_prints_no_library_warnings(tmp_path: Path) -> None:
    """transformers would warn of an id outside the vocabulary, and of a converted tokenizer."""
    exported = export_tiny("gpt2", tmp_path, vocabulary=300)
    config = json.loads((exported.folder / "config.json").read_text())
    (exported.folder / "config.json").write_text(json.dumps(config | {"pad_token_id": -1}))
    content = json.loads((exported.folder / "tokenizer.json").read_text())["model"]
    (exported.folder / "tokenizer.json").unlink()
    (exported.folder / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = "\n".join(" ".join(merge) for merge in content["merges"])
    (exported.folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (exported.folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    command = [sys.executable, "-m", "megaptm", "import", "hf", str(exported.folder), str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    assert result.stdout.startswith(f"{exported.folder} is step 0 of {tmp_path / 'run'}")


def test_package_import_prints_nothing() -> None:
    command = [sys.executable, "-W", "always", "-c", "import megaptm; megaptm.load, megaptm.build_model"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")


def test_load_without_mask_decoder(tmp_path: Path) -> None:
    exported = export_tiny("deberta-v2", tmp_path, vocabulary=300)
    reference = transformers.DebertaV2ForMaskedLM.from_pretrained(exported.folder).eval()
    reference.save_pretrained(tmp_path / "theirs")
    exported.tokenizer.save(tmp_path / "theirs")
    loaded = megaptm.load(tmp_path / "theirs")
    tokens = torch.arange(5, 15)[None]
    with torch.inference_mode():
        assert (loaded.model.logits({"tokens": tokens})["mlm"] - reference(tokens).logits).abs().max() <= 1e-5
    assert loaded.newly_initialized == ()


def test_window_of_one_stack_is_refused(tmp_path: Path) -> None:
    """A run has one window for all stacks; with that of T5Gemma's decoder, its encoder would see half of the tokens."""
    exported = export_tiny("t5gemma", tmp_path, vocabulary=500)
    config = json.loads((exported.folder / "config.json").read_text())
    sections = {stack: {**config[stack], "sliding_window": 6} for stack in ("encoder", "decoder")}
    (exported.folder / "config.json").write_text(json.dumps(config | sections))
    with pytest.raises(UserError, match=r"encoder.sliding_window is 6 \(a run of t5gemma has 4096\); decoder"):
        import_run(str(exported.folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_decoder_without_grouped_keys(tmp_path: Path) -> None:
    """Only the encoder shares keys among heads; the decoder's heads have the default width."""
    family = CATALOGUE["t5gemma"]
    size = Size(layers=2, width=32, heads=4, ffn=64, head_width=16, kv_heads=2)
    size = change(size, stacks={"decoder": Size(layers=2, width=32, heads=4, ffn=64)})
    init_weights(model := Model(ModelSpec(family=family, size=size, vocabulary=500, context=24, dropout=0.0)), seed=0)
    to_hugging_face(model.spec, dict(model.named_parameters()), None, tmp_path / "theirs")
    config = import_run(str(tmp_path / "theirs"), tmp_path / "run").config
    decoder = resolve_model(config).size_of("decoder")
    assert (decoder.key_width, decoder.key_heads) == (8, 4)


@pytest.mark.parametrize("family", ["longformer", "led"])
def test_windows_that_differ_among_layers(family: str, tmp_path: Path) -> None:
    exported = export_tiny(family, tmp_path, vocabulary=300)
    config = import_run(str(exported.folder), tmp_path / "run").config
    assert config.model.attention["window"] == (4, 6)
    assert megaptm.load(tmp_path / "run").spec == from_hugging_face(exported.folder).spec


def test_kinds_of_attention_that_differ_from_the_family_are_refused(tmp_path: Path) -> None:
    """A config names the kinds of attention by its family; `reformer` has local attention only."""
    exported = export_tiny("reformer-novel", tmp_path, vocabulary=500)
    with pytest.raises(
        UserError, match=r"attn_layers is \['local', 'lsh'\] \(a run of reformer has \['local', 'local'"
    ):
        import_run(str(exported.folder), tmp_path / "run")


@pytest.mark.parametrize(
    ("family", "ids", "message"),
    [
        (
            "llama3",
            {"eos_token_id": [7, 9]},
            "has eos_token_id [7, 9] (here 299): a run takes special ids from its tok",
        ),
        ("t5", {"decoder_start_token_id": 3}, "has decoder_start_token_id 3 (here 0): a run takes special ids from it"),
        ("electra", {"pad_token_id": 7}, "has pad_token_id 7 (here 0): a run takes special ids from its tokenizer"),
    ],
)
def test_other_special_ids_are_reported(family: str, ids: dict[str, Any], message: str, tmp_path: Path) -> None:
    exported = export_tiny(family, tmp_path, vocabulary=300)
    assert "special ids" not in run_command(import_group, "hf", exported.folder, tmp_path / "run")
    set_config(exported.folder, **ids)
    first, *_ = run_command(import_group, "hf", exported.folder, tmp_path / "other").splitlines()
    assert message in first


def test_untrained_head_of_export_is_reported(tmp_path: Path) -> None:
    exported = export_tiny("bert", tmp_path, vocabulary=300)
    source = save_as("BertForMaskedLM", exported.folder, tmp_path / "theirs")
    run_command(import_group, "hf", source, tmp_path / "run", "--tokenizer", exported.folder)
    warning = "warning: no loss has trained next-sentence: these weights are the initial ones"
    assert warning in run_command(export_group, "hf", tmp_path / "run", tmp_path / "again")
    run_command(import_group, "hf", exported.folder, tmp_path / "whole", "objective=masked-lm", "train.seed=5")
    assert "no loss" not in run_command(export_group, "hf", tmp_path / "whole", tmp_path / "whole-again")


def test_unsupported_norm_eps_is_refused(tmp_path: Path) -> None:
    exported = export_tiny("gpt2", tmp_path, vocabulary=300)
    set_config(exported.folder, layer_norm_epsilon=1e-3)
    with pytest.raises(UserError, match=r"layer_norm_epsilon is 0.001 \(gpt2 has 1e-05\); the model cannot be tr"):
        import_run(str(exported.folder), tmp_path / "run")
