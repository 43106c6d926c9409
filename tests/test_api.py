"""The Python interface `import megaptm`, on untrained runs and their exports."""

import json
import threading

import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader

import megaptm
from megaptm.commands.evaluate import evaluate_command as measure
from megaptm.commands.generate import generate_command
from megaptm.config import format_override, load_config
from megaptm.data import open_mix
from megaptm.hub.huggingface import to_hugging_face
from megaptm.inference.evaluate import evaluate_model
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.folder import read_config
from megaptm.tokenizers import load_tokenizer
from tests.train.runs import CONFIGS, build, save_untrained, write_text

transformers = pytest.importorskip("transformers")
TEXTS = ["The cat saw the hat by the window.", "The dog.", "The king left the house by the river."]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return family -> (corpus, run folder, export folder)."""
    folder = tmp_path_factory.mktemp("library")
    text = write_text(folder / "tales")
    folders = {}
    for family in ("gpt2", "bert", "t5"):
        corpus = build(text, folder / family, family)
        run, _ = save_untrained(family, folder / f"{family}-run", corpus)
        saved, exported = open_checkpoint(run), folder / f"{family}-exported"
        to_hugging_face(saved.spec, saved.weights(), saved.tokenizer, exported, sequence=32)
        folders[family] = (corpus, run, exported)
    return folders


def test_run_and_export_give_equal_results(models):
    for family, method in (("gpt2", "generate"), ("bert", "guess"), ("t5", "fill")):
        corpus, run, exported = models[family]
        run_model, exported_model = megaptm.load(run, device="cpu"), megaptm.load(exported, device="cpu")
        assert (run_model.step, exported_model.step) == (7, 0)
        prompt = {"guess": "The [MASK] saw the hat.", "fill": "The <extra_id_0> saw the hat."}.get(method, "The cat")
        outputs = [getattr(model, method)(prompt) for model in (run_model, exported_model)]
        assert outputs[0] == outputs[1]
        assert torch.equal(run_model.encode(TEXTS), exported_model.encode(TEXTS))
        losses = [model.evaluate(corpus, rows=2, sequence=32).losses for model in (run_model, exported_model)]
        assert losses[0] == losses[1]


def test_commands_accept_runs_and_exports(models):
    corpus, run, exported = models["gpt2"]
    outputs = [
        CliRunner().invoke(generate_command, [str(folder), "--prompt", "The cat"]).output for folder in (run, exported)
    ]
    assert outputs[0] == outputs[1] != ""
    options = ("--corpus", str(corpus), "--rows", "2", "--sequence", "32", "--json")
    results = [json.loads(CliRunner().invoke(measure, [str(folder), *options]).stdout) for folder in (run, exported)]
    assert results[0]["losses"] == results[1]["losses"]
    with pytest.raises(
        megaptm.UserError, match=r"is an exported model, which has no corpora of its own: name one with --corpus"
    ):
        CliRunner().invoke(measure, [str(exported)], catch_exceptions=False)


def test_evaluate_method_equals_the_command(models):
    corpus, run, _ = models["gpt2"]
    model = megaptm.load(run)
    assert model.evaluate(rows=4) == evaluate_model(model, EvaluationOptions(rows=4))
    assert model.evaluate(corpus, rows=4).losses == model.evaluate({str(corpus): 1.0}, rows=4).losses


@pytest.mark.parametrize(("family", "kind"), [("gpt2", "GPT2Model"), ("bert", "BertModel"), ("t5", "T5EncoderModel")])
def test_encode_equals_hidden_states_of_transformers(models, family, kind):
    _, run, exported = models[family]
    reference = getattr(transformers, kind).from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    with torch.no_grad():
        hidden = [reference(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    model = megaptm.load(run, device="cpu")
    encoded = model.encode(TEXTS, pool="none", batch=2)
    for own_LD, hidden_LD in zip(encoded, hidden, strict=True):
        torch.testing.assert_close(own_LD[: len(hidden_LD)], hidden_LD, rtol=1e-4, atol=1e-5)
        assert not own_LD[len(hidden_LD) :].any()
    for pool, expected in (("mean", [x.mean(0) for x in hidden]), ("last", [x[-1] for x in hidden])):
        torch.testing.assert_close(model.encode(TEXTS, pool=pool), torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert model.encode(TEXTS[0], pool="first").shape == (1, 32)


def test_dataset_has_the_samples_of_a_run(models):
    corpus = models["bert"][0]
    data = megaptm.open_dataset(corpus, objective="masked-lm", sequence=32, seed=5)
    special = load_tokenizer(corpus / "tokenizer").special
    mix = open_mix({str(corpus): 1.0}, objective="masked-lm", sequence=32, seed=5, special=special)
    assert len(data) == mix.fresh_samples
    assert len(megaptm.open_dataset({corpus: 2.0}, objective="masked-lm", sequence=32, epochs=2)) > len(data)
    assert all((data[3][field].numpy() == value).all() for field, value in mix.sample(3).items())
    assert (data[-1]["tokens"] == data[len(data) - 1]["tokens"]).all()
    with pytest.raises(IndexError):
        data[len(data)]
    model = megaptm.build_model("bert", layers=1, width=16, heads=2, ffn=32, vocabulary=150, context=32)
    [batch] = [*DataLoader(data, batch_size=4)][:1]
    loss, num_labels = model(batch).losses["mlm"]
    (loss / num_labels).backward()
    assert model.embed.token.weight.grad.any()


def test_dataset_reads_single_samples(models, monkeypatch):
    data = megaptm.open_dataset(models["gpt2"][0], objective="causal-lm", sequence=32)
    monkeypatch.setattr(type(data.mix), "samples_in", None)
    assert data[0]["tokens"].shape == data[-1]["tokens"].shape == (32,)
    assert len(data) > 1


def test_build_model_has_the_initial_weights_of_a_run():
    config = load_config(CONFIGS / "gpt2/tiny.yaml", ["model.vocabulary=300", "model.layers=1"])
    shape = {name: getattr(config.model, name) for name in ("layers", "width", "heads", "ffn", "context", "dropout")}
    model = megaptm.build_model("gpt2", vocabulary=300, seed=9, **shape)
    spec = model.spec
    init_weights(expected := Model(spec), 9)
    assert spec == megaptm.build_model("gpt2", "custom", vocabulary=300, **shape).spec
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_webdataset_reads_the_shards(models):
    corpus, _, _ = models["gpt2"]
    documents = [*megaptm.open_webdataset(corpus)]
    from megaptm.data import Corpus

    expected = [*Corpus.open(corpus).documents("train")]
    assert [document["tokens.npy"].tolist() for document in documents] == [document.tolist() for document in expected]
    assert all(document["json"] is not None for document in documents)


def test_config_mapping_equals_config_file(tmp_path):
    changes = {
        "run": tmp_path / "run",
        "data": {"mix": {tmp_path.name: 2}},
        "optimizer": {"lr": 1e-5, "betas": (0.8, 0.9)},
    }
    typed = [
        f"run={tmp_path / 'run'}",
        f"data.mix={{{tmp_path.name}: 2}}",
        "optimizer.lr=1e-5",
        "optimizer.betas=[0.8,0.9]",
    ]
    expected = read_config(CONFIGS / "gpt2/tiny.yaml", typed)
    assert read_config({"extends": CONFIGS / "gpt2/tiny.yaml", **changes}) == expected
    assert (
        read_config({"extends": "gpt2/tiny"}, [format_override(key, value) for key, value in changes.items()])
        == expected
    )
    with pytest.raises(megaptm.UserError, match=r"the given config: .*use values that YAML can represent"):
        read_config({"run": object()})


def test_pretrain_reports_config_errors(tmp_path):
    with pytest.raises(megaptm.UserError, match=r"unknown key train\.stpes; did you mean train\.steps\?"):
        megaptm.pretrain(CONFIGS / "gpt2/tiny.yaml", train={"stpes": 3})
    with pytest.raises(megaptm.UserError, match=r"the given config: train\.batch must be at least 1, not 0"):
        megaptm.pretrain({"extends": "gpt2/tiny", "run": tmp_path / "run", "train": {"batch": 0}})
    errors = []

    def call_on_other_thread():
        with pytest.raises(megaptm.UserError, match="main thread") as caught:
            megaptm.pretrain("gpt2/tiny")
        errors.append(caught)

    thread = threading.Thread(target=call_on_other_thread)
    thread.start()
    thread.join()
    assert errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda models: megaptm.load("/nowhere"), "has neither the config.yaml of a run nor the config.json"),
        (lambda models: megaptm.load(models["gpt2"][2], step=3), "which has no steps: remove the option"),
        (lambda models: megaptm.load(models["gpt2"][1]).guess("The [MASK]."), r"gpt2 \(decoder\) cannot guess"),
        (lambda models: megaptm.load(models["gpt2"][1]).encode(["The", ""]), r"texts\[1\] is empty"),
        (lambda models: megaptm.load(models["gpt2"][1]).encode("The " * 200), r"texts\[0\] has \d+ tokens"),
        (lambda models: megaptm.load(models["gpt2"][1]).encode("The", pool="max"), r"pool \(max\) must be one of mean"),
        (lambda models: megaptm.build_model("gpt5", "small"), r"model.family \(gpt5\) is not in the catalogue"),
        (lambda models: megaptm.build_model("gpt2", "tiny"), r"model.size \(tiny\) is not a size of gpt2"),
        (lambda models: megaptm.build_model("gpt2"), "model.size custom needs model.layers"),
        (lambda models: megaptm.build_model("gpt2", "small", layer=2), "unknown key model.layer; did you mean"),
        (lambda models: megaptm.build_model("gpt2", "small", heads=7), "must divide the width 768 of gpt2/small"),
        (lambda models: megaptm.open_dataset("/nowhere", objective="causal-lm", sequence=32), "not a finished corpus"),
        (
            lambda models: megaptm.open_dataset(models["gpt2"][0], objective="casual", sequence=32),
            r"objective \(casual\) is unknown; did you mean causal-lm",
        ),
        (
            lambda models: megaptm.open_dataset([models["gpt2"][0]], objective="causal-lm", sequence=32),
            "corpora must be a folder, a URL, or a mapping of them to weights, not ",
        ),
        (
            lambda models: megaptm.open_dataset(models["gpt2"][0], objective="causal-lm", sequence=32.5),
            r"sequence must be an integer, not 32\.5",
        ),
        (
            lambda models: megaptm.open_dataset(models["gpt2"][0], objective="causal-lm", sequence=32, epochs=1.5),
            r"epochs must be an integer, not 1\.5",
        ),
        (
            lambda models: megaptm.open_dataset("reference://corpus", objective="causal-lm", sequence=32),
            "reference://corpus/manifest.json: reference:// is not a protocol that megaptm reads",
        ),
        (
            lambda models: megaptm.open_dataset(
                models["gpt2"][0], objective="causal-lm", sequence=32, document_mask="no"
            ),
            "document_mask must be True or False, not 'no'",
        ),
        (lambda models: megaptm.build_model("gpt2", "small", device="nope"), r"PyTorch finds no device \(nope\)"),
        (lambda models: megaptm.load(models["gpt2"][1], device="nope"), r"PyTorch finds no device \(nope\)"),
        (lambda models: megaptm.load(None), "folder must be the folder of a run or of an exported model, not None"),
        (lambda models: megaptm.pretrain(""), "config is empty: name a YAML file"),
        (lambda models: megaptm.open_webdataset("s3://bucket/corpus"), "is not a local folder"),
    ],
)
def test_invalid_calls_raise_user_errors(models, call, message):
    with pytest.raises(megaptm.UserError, match=message) as caught:
        call(models)
    assert "\n" not in str(caught.value)


def test_dir_shows_the_names_of_the_library():
    """They are imported on first use, so that the module itself does not hold them."""
    assert dir(megaptm) == sorted(megaptm.__all__)
