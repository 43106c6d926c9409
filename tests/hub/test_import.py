"""What `megaptm import hf` says of a model, how its training was another than it would be here; and families that begin
from a model of another."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import megaptm
from megaptm.checkpoint.store import Store
from megaptm.commands.export import export
from megaptm.commands.imports import imports
from megaptm.config import load
from megaptm.errors import UserError
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import check_text_end, import_run
from megaptm.hub.imported_weights import ImportedModel
from megaptm.models import build_model, fill
from megaptm.run.compatibility import compatibility, refuse_another
from megaptm.spec import WindowSpec
from megaptm.tokenizers import train
from tests.commands import run_command
from tests.hub.exported import ExportedTiny, export_tiny
from tests.models.vision import clip_model


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Hugging Face's, exported from a BART whose every dropout is 0.1."""
    return export_tiny("bart", tmp_path_factory.mktemp("bart"), vocabulary=300, dropout=0.1).folder


def trained_with(folder: Path, **rates: float) -> None:
    """As if it had been trained with other rates than its table's."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **rates}))


@pytest.mark.parametrize(
    ("rates", "more", "told"),
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
def test_dropouts_that_are_others_here_are_told(
    bart: Path, tmp_path: Path, rates: dict[str, float], more: list[str], told: str | None
) -> None:
    trained_with(bart, **rates)
    first, *_ = run_command(imports, "hf", bart, tmp_path / "run", *more).splitlines()
    if told is None:
        assert first.startswith(f"{bart} is step 0 of {tmp_path}/run")
    else:
        here = "here one rate applies to all, model.dropout="
        assert first == f"{bart} was trained with {told.format(here=here)}"


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> ExportedTiny:
    return export_tiny("roberta", tmp_path_factory.mktemp("roberta"), vocabulary=300)


@pytest.mark.parametrize(("family", "context"), [("longformer", 4096), ("bigbird", 4096)])
def test_a_model_of_long_texts_begins_with_a_roberta(
    family: str, context: int, roberta: ExportedTiny, tmp_path: Path
) -> None:
    """By the command, on rows of its own length."""
    run_command(imports, "hf", roberta.folder, tmp_path / "run", f"model.family={family}")
    begun = megaptm.load(tmp_path / "run")
    assert (begun.spec.name, begun.spec.context) == (family, context)
    assert begun.model.embed.token.weight.equal(roberta.model.embed.token.weight)


def test_an_encoder_of_long_texts_begins_with_a_bart(bart: Path, tmp_path: Path) -> None:
    """LED's rows are as long as what its decoder has places for."""
    run_command(imports, "hf", bart, tmp_path / "run", "model.family=led")
    begun = megaptm.load(tmp_path / "run")
    assert (begun.spec.name, begun.spec.context, begun.config.data.sequence) == ("led", 16_384, 24)


def test_a_model_of_regions_begins_with_a_roberta(roberta: ExportedTiny, tmp_path: Path) -> None:
    """As one of a text alone; the detector is said at the import, since no config of theirs knows of any."""
    words = ["model.family=unimo", "model.detector=[24, 17]"]
    first, second, *_ = run_command(imports, "hf", roberta.folder, tmp_path / "run", *words).splitlines()
    assert "has no embed.region.project, embed.region.box, embed.region.norm, head.mrfr" in first
    assert second.startswith(f"{roberta.folder} is step 0 of {tmp_path}/run (unimo/custom")
    config = load(tmp_path / "run/config.yaml")
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
    for said in ("24", "[0, 17]"):
        with pytest.raises(UserError, match=r"must be \[FEATURES,CLASSES\], two positive integers"):
            import_run(str(roberta.folder), tmp_path / "other", ["model.family=unimo", f"model.detector={said}"])


def test_a_small_encoder_of_long_texts_begins_with_a_small_bart(bart: Path, tmp_path: Path) -> None:
    """As many places as said, BART's 24 in turn, and any window: with which a config of its own goes on."""
    words = ["model.family=led", "model.context=60", "model.attention.window=[8, 4]"]
    run_command(imports, "hf", bart, tmp_path / "run", *words)
    begun, whole = megaptm.load(tmp_path / "run"), from_hugging_face(bart)
    assert (begun.spec.context, begun.spec.context_of("decoder")) == (60, 24)
    assert begun.spec.family.first_block.attentions == (WindowSpec(window=8), WindowSpec(window=4))
    places = begun.model.embed.position.weight
    assert places.equal(whole.weights["embed.position.weight"][2 + torch.arange(60) % 24])


@pytest.mark.parametrize(
    ("words", "told"),
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
def test_what_a_bart_does_not_leave_open_is_told(bart: Path, tmp_path: Path, words: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        import_run(str(bart), tmp_path / "run", words)
    assert not (tmp_path / "run").exists()


def saved_as(model_class: str, folder: Path, place: Path) -> Path:
    """The model in a folder as another class of transformers saves it, without its tokenizer."""
    getattr(transformers, model_class).from_pretrained(folder).save_pretrained(place)
    return place


@pytest.mark.parametrize("model_class", ["BertForMaskedLM", "BertModel"])
def test_the_objective_is_one_of_the_heads_that_the_source_has(
    model_class: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    bert = export_tiny("bert", tmp_path_factory.mktemp("bert"), vocabulary=300)
    source = saved_as(model_class, bert.folder, tmp_path / "theirs")
    done = import_run(str(source), tmp_path / "run", tokenizer=bert.folder)
    assert done.config.objective == "masked-lm"
    assert import_run(str(bert.folder), tmp_path / "whole").config.objective == "masked-lm-next-sentence"


def test_a_pooler_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """BigBird's, which pre-training does not read."""
    made = export_tiny("bigbird", tmp_path, vocabulary=300)
    theirs = transformers.BigBirdForMaskedLM.from_pretrained(made.folder)
    theirs.save_pretrained(tmp_path / "theirs")
    told = run_command(imports, "hf", tmp_path / "theirs", tmp_path / "run", "--tokenizer", made.folder)
    assert "has weights that no objective here trains: bert.pooler.bias, bert.pooler.weight" in told
    run_command(export, "hf", tmp_path / "run", tmp_path / "again")
    state = load_file(tmp_path / "again/model.safetensors")
    assert state["bert.pooler.weight"].equal(theirs.bert.pooler.weight)
    assert all(state[name].equal(tensor) for name, tensor in load_file(tmp_path / "theirs/model.safetensors").items())


def test_a_model_without_a_tokenizer_takes_that_of_its_corpus(tmp_path: Path) -> None:
    made = export_tiny("gpt2", tmp_path, vocabulary=300)
    source = saved_as("GPT2LMHeadModel", made.folder, tmp_path / "theirs")
    told = run_command(imports, "hf", source, tmp_path / "run")
    assert "tokenizer=FOLDER_OF_ITS_TOKENIZER" in told
    assert not (tmp_path / "run/tokenizer").exists()
    checkpoint = Store(tmp_path / "run").load(0)
    refuse_another(checkpoint, compatibility(from_hugging_face(source).spec, made.tokenizer.fingerprint))
    message = run_command(export, "hf", tmp_path / "run", tmp_path / "again")
    assert not (tmp_path / "again/tokenizer.json").exists()
    assert "AutoTokenizer" not in message
    assert "warning: the run has no tokenizer yet, so the export has none" in message
    run_command(imports, "hf", source, tmp_path / "other", "--tokenizer", made.folder)
    assert megaptm.load(tmp_path / "other").tokenizer.fingerprint == made.tokenizer.fingerprint
    with pytest.raises(UserError, match=r"has no tokenizer.json: copy the model's tokenizer into the folder"):
        megaptm.load(source)


def test_a_mask_decoder_that_begins_afresh_is_told(tmp_path: Path) -> None:
    made = export_tiny("deberta-v2", tmp_path, vocabulary=300)
    source = saved_as("DebertaV2ForMaskedLM", made.folder, tmp_path / "theirs")
    first, *_ = run_command(imports, "hf", source, tmp_path / "run", "--tokenizer", made.folder).splitlines()
    assert first == (
        f"{source} has no encoder.place_table: transformers has no mask decoder, but megaptm's deberta-v2 has "
        "one. It is initialized anew, so logits of masked tokens differ from transformers"
    )


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        (7, r"text_config.eos_token_id is 7, but the tokenizer in .* ends texts with id 299, so that transformers"),
        (2, None),
        (299, None),
    ],
)
def test_a_config_that_contradicts_the_end_of_texts_is_refused(ends: int, told: str | None, tmp_path: Path) -> None:
    """With 2 `CLIPTextModel` takes the largest id of a text for its end, as in the first release."""
    tokenizer = train("byte-bpe", ["the cat sat on the mat"] * 9, vocabulary=300, specials="clip")
    tokenizer.save(tmp_path / "tokenizer")
    model = clip_model()
    assert tokenizer.special.end == tokenizer.vocabulary - 1
    spec = replace(model.spec, vocabulary=tokenizer.vocabulary)
    fill(model := build_model(spec), seed=0)
    to_hugging_face(spec, dict(model.named_parameters()), tmp_path / "tokenizer", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    end = tokenizer.special.end
    config["text_config"]["eos_token_id"] = end if ends == 299 else ends
    (tmp_path / "out/config.json").write_text(json.dumps(config))
    if told is None:
        import_run(str(tmp_path / "out"), tmp_path / "run")
        return
    with pytest.raises(UserError, match=told.replace("299", str(end))):
        import_run(str(tmp_path / "out"), tmp_path / "run")


def test_a_larger_id_than_that_of_the_end_is_refused_where_the_largest_ends(tmp_path: Path) -> None:
    tokenizer = train("byte-bpe", ["the cat sat on the mat"] * 9, vocabulary=300, specials="roberta")
    model = replace(ImportedModel(clip_model().spec, {}, {}), text_end=2)
    with pytest.raises(UserError, match=r"ends texts with id 2 and has ids up to \d+, so such a model cannot be"):
        check_text_end(model, tokenizer, tmp_path)


def test_an_import_prints_no_warnings_of_other_libraries(tmp_path: Path) -> None:
    """transformers complains of an id outside the vocabulary, and of a tokenizer that it converts."""
    made = export_tiny("gpt2", tmp_path, vocabulary=300)
    config = json.loads((made.folder / "config.json").read_text())
    (made.folder / "config.json").write_text(json.dumps(config | {"pad_token_id": -1}))
    content = json.loads((made.folder / "tokenizer.json").read_text())["model"]
    (made.folder / "tokenizer.json").unlink()
    (made.folder / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = "\n".join(" ".join(merge) for merge in content["merges"])
    (made.folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (made.folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    command = [sys.executable, "-m", "megaptm", "import", "hf", str(made.folder), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith(f"{made.folder} is step 0 of {tmp_path / 'run'}")


def test_the_package_is_imported_without_a_word() -> None:
    command = [sys.executable, "-W", "always", "-c", "import megaptm; megaptm.load, megaptm.build_model"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_folder_without_a_mask_decoder_is_read_without_one(tmp_path: Path) -> None:
    made = export_tiny("deberta-v2", tmp_path, vocabulary=300)
    theirs = transformers.DebertaV2ForMaskedLM.from_pretrained(made.folder).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    made.tokenizer.save(tmp_path / "theirs")
    ours = megaptm.load(tmp_path / "theirs")
    tokens = torch.arange(5, 15)[None]
    with torch.inference_mode():
        assert (ours.model.logits({"tokens": tokens})["mlm"] - theirs(tokens).logits).abs().max() <= 1e-5
    assert ours.fresh == ()


def test_another_eps_of_norms_is_refused_by_name(tmp_path: Path) -> None:
    made = export_tiny("gpt2", tmp_path, vocabulary=300)
    trained_with(made.folder, layer_norm_epsilon=1e-3)
    with pytest.raises(UserError, match=r"layer_norm_epsilon is 0.001 \(gpt2 has 1e-05\); the model cannot be tr"):
        import_run(str(made.folder), tmp_path / "run")
