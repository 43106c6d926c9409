"""What `import megaptm` offers, on untrained runs of each family and on what is exported from them."""

import json
import threading

import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader

import megaptm
from megaptm.commands.evaluate import evaluate as measure
from megaptm.commands.generate import generate
from megaptm.config import load as load_config
from megaptm.config import override_of
from megaptm.data import open_mix
from megaptm.hub.huggingface import to_hugging_face
from megaptm.inference.evaluate import evaluate
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.models import build_model as build_of_spec
from megaptm.models import fill
from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.folder import read_config
from megaptm.tokenizers import load as load_tokenizer
from tests.train.runs import CONFIGS, build, save_untrained, write_text

transformers = pytest.importorskip("transformers")
TEXTS = ["The cat saw the hat by the window.", "The dog.", "The king left the house by the river."]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """family -> (corpus, run, the folder that it was exported to)"""
    folder = tmp_path_factory.mktemp("library")
    text = write_text(folder / "tales")
    found = {}
    for family in ("gpt2", "bert", "t5"):
        corpus = build(text, folder / family, family)
        run, _ = save_untrained(family, folder / f"{family}-run", corpus)
        saved, exported = open_checkpoint(run), folder / f"{family}-exported"
        to_hugging_face(saved.spec, saved.weights(), saved.tokenizer, exported, sequence=32)
        found[family] = (corpus, run, exported)
    return found


def test_a_run_and_its_export_say_the_same(places):
    for family, ask in (("gpt2", "generate"), ("bert", "guess"), ("t5", "fill")):
        corpus, run, exported = places[family]
        ours, theirs = megaptm.load(run, device="cpu"), megaptm.load(exported, device="cpu")
        assert (ours.step, theirs.step) == (7, 0)
        prompt = {"guess": "The [MASK] saw the hat.", "fill": "The <extra_id_0> saw the hat."}.get(ask, "The cat")
        said = [getattr(model, ask)(prompt) for model in (ours, theirs)]
        assert said[0] == said[1]
        assert torch.equal(ours.encode(TEXTS), theirs.encode(TEXTS))
        losses = [model.evaluate(corpus, rows=2, sequence=32).losses for model in (ours, theirs)]
        assert losses[0] == losses[1]


def test_commands_take_an_export_as_they_take_a_run(places):
    corpus, run, exported = places["gpt2"]
    said = [CliRunner().invoke(generate, [str(place), "--prompt", "The cat"]).output for place in (run, exported)]
    assert said[0] == said[1] != ""
    asked = ("--corpus", str(corpus), "--rows", "2", "--sequence", "32", "--json")
    found = [json.loads(CliRunner().invoke(measure, [str(place), *asked]).stdout) for place in (run, exported)]
    assert found[0]["losses"] == found[1]["losses"]
    with pytest.raises(
        megaptm.UserError, match=r"is an exported model, which has no corpora of its own: name one with --corpus"
    ):
        CliRunner().invoke(measure, [str(exported)], catch_exceptions=False)


def test_evaluate_is_the_commands(places):
    corpus, run, _ = places["gpt2"]
    model = megaptm.load(run)
    assert model.evaluate(rows=4) == evaluate(model, EvaluationOptions(rows=4))
    assert model.evaluate(corpus, rows=4).losses == model.evaluate({str(corpus): 1.0}, rows=4).losses


@pytest.mark.parametrize(("family", "kind"), [("gpt2", "GPT2Model"), ("bert", "BertModel"), ("t5", "T5EncoderModel")])
def test_encoded_texts_are_the_hidden_states_of_transformers(places, family, kind):
    _, run, exported = places[family]
    theirs = getattr(transformers, kind).from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    with torch.no_grad():
        hidden = [theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    model = megaptm.load(run, device="cpu")
    whole = model.encode(TEXTS, pool="none", batch=2)
    for ours, one in zip(whole, hidden, strict=True):
        torch.testing.assert_close(ours[: len(one)], one, rtol=1e-4, atol=1e-5)
        assert not ours[len(one) :].any()
    for pool, expected in (("mean", [x.mean(0) for x in hidden]), ("last", [x[-1] for x in hidden])):
        torch.testing.assert_close(model.encode(TEXTS, pool=pool), torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert model.encode(TEXTS[0], pool="first").shape == (1, 32)


def test_a_data_set_has_the_samples_of_a_run_and_a_model_takes_its_batches(places):
    corpus = places["bert"][0]
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
    loss, asked = model(batch)["mlm"]
    (loss / asked).backward()
    assert model.embed.token.weight.grad.any()


def test_a_sample_of_a_data_set_costs_what_one_of_a_run_does(places, monkeypatch):
    data = megaptm.open_dataset(places["gpt2"][0], objective="causal-lm", sequence=32)
    monkeypatch.setattr(type(data.mix), "samples_in", None)
    assert data[0]["tokens"].shape == data[-1]["tokens"].shape == (32,)
    assert len(data) > 1


def test_a_model_is_built_as_a_run_of_its_seed_begins():
    config = load_config(CONFIGS / "gpt2/tiny.yaml", ["model.vocabulary=300", "model.layers=1"])
    shape = {name: getattr(config.model, name) for name in ("layers", "width", "heads", "ffn", "context", "dropout")}
    ours = megaptm.build_model("gpt2", vocabulary=300, seed=9, **shape)
    spec = ours.spec
    fill(expected := build_of_spec(spec), 9)
    assert spec == megaptm.build_model("gpt2", "custom", vocabulary=300, **shape).spec
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), expected.parameters(), strict=True))


def test_the_shards_of_a_corpus_are_read_by_webdataset(places):
    corpus, _, _ = places["gpt2"]
    documents = [*megaptm.open_webdataset(corpus)]
    from megaptm.data import Corpus

    expected = [*Corpus.open(corpus).documents("train")]
    assert [one["tokens.npy"].tolist() for one in documents] == [one.tolist() for one in expected]
    assert all(one["json"] is not None for one in documents)


def test_a_mapping_is_read_as_the_file_it_would_be(tmp_path):
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
    wanted = read_config(CONFIGS / "gpt2/tiny.yaml", typed)
    assert read_config({"extends": CONFIGS / "gpt2/tiny.yaml", **changes}) == wanted
    assert read_config({"extends": "gpt2/tiny"}, [override_of(key, value) for key, value in changes.items()]) == wanted
    with pytest.raises(megaptm.UserError, match=r"the given config: .*use values that YAML can represent"):
        read_config({"run": object()})


def test_a_mistake_in_what_is_to_be_trained_is_one_sentence(tmp_path):
    with pytest.raises(megaptm.UserError, match=r"unknown key train\.stpes; did you mean train\.steps\?"):
        megaptm.pretrain(CONFIGS / "gpt2/tiny.yaml", train={"stpes": 3})
    with pytest.raises(megaptm.UserError, match=r"the given config: train\.batch must be at least 1, not 0"):
        megaptm.pretrain({"extends": "gpt2/tiny", "run": tmp_path / "run", "train": {"batch": 0}})
    told = []

    def elsewhere():
        with pytest.raises(megaptm.UserError, match="main thread") as caught:
            megaptm.pretrain("gpt2/tiny")
        told.append(caught)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda places: megaptm.load("/nowhere"), "holds neither the config.yaml of a run nor the config.json"),
        (lambda places: megaptm.load(places["gpt2"][2], step=3), "which has no steps; leave it out"),
        (lambda places: megaptm.load(places["gpt2"][1]).guess("The [MASK]."), "gpt2 is decoder, which cannot guess"),
        (lambda places: megaptm.load(places["gpt2"][1]).encode(["The", ""]), r"texts\[1\] is empty"),
        (lambda places: megaptm.load(places["gpt2"][1]).encode("The " * 200), r"texts\[0\] has \d+ tokens"),
        (lambda places: megaptm.load(places["gpt2"][1]).encode("The", pool="max"), r"pool \(max\) must be one of mean"),
        (lambda places: megaptm.build_model("gpt5", "small"), r"model.family \(gpt5\) is not in the catalogue"),
        (lambda places: megaptm.build_model("gpt2", "tiny"), r"model.size \(tiny\) is not a size of gpt2"),
        (lambda places: megaptm.build_model("gpt2"), "model.size custom needs model.layers"),
        (lambda places: megaptm.build_model("gpt2", "small", layer=2), "unknown key model.layer; did you mean"),
        (lambda places: megaptm.build_model("gpt2", "small", heads=7), "must divide the width 768 of gpt2/small"),
        (lambda places: megaptm.open_dataset("/nowhere", objective="causal-lm", sequence=32), "not a finished corpus"),
        (
            lambda places: megaptm.open_dataset(places["gpt2"][0], objective="casual", sequence=32),
            r"objective \(casual\) is not known; did you mean causal-lm",
        ),
        (
            lambda places: megaptm.open_dataset([places["gpt2"][0]], objective="causal-lm", sequence=32),
            "corpora must be a folder, a URL, or a mapping of them to weights, not ",
        ),
        (
            lambda places: megaptm.open_dataset(places["gpt2"][0], objective="causal-lm", sequence=32.5),
            r"sequence must be an integer, not 32\.5",
        ),
        (
            lambda places: megaptm.open_dataset(places["gpt2"][0], objective="causal-lm", sequence=32, epochs=1.5),
            r"epochs must be an integer, not 1\.5",
        ),
        (
            lambda places: megaptm.open_dataset("reference://corpus", objective="causal-lm", sequence=32),
            "reference://corpus/manifest.json: reference:// is not a protocol that megaptm reads",
        ),
        (
            lambda places: megaptm.open_dataset(
                places["gpt2"][0], objective="causal-lm", sequence=32, document_mask="no"
            ),
            "document_mask must be True or False, not 'no'",
        ),
        (lambda places: megaptm.build_model("gpt2", "small", device="nope"), r"device \(nope\) is none that PyTorch"),
        (lambda places: megaptm.load(places["gpt2"][1], device="nope"), r"device \(nope\) is none that PyTorch finds"),
        (lambda places: megaptm.load(None), "folder must be that of a run, or of an exported model, not None"),
        (lambda places: megaptm.pretrain(""), "config is empty: name a YAML file"),
        (lambda places: megaptm.open_webdataset("s3://bucket/corpus"), "is not a folder of this machine"),
    ],
)
def test_what_cannot_be_is_one_sentence(places, ask, said):
    with pytest.raises(megaptm.UserError, match=said) as caught:
        ask(places)
    assert "\n" not in str(caught.value)


def test_dir_shows_the_names_of_the_library():
    """They are imported on first use, so that the module itself does not hold them."""
    assert dir(megaptm) == sorted(megaptm.__all__)
