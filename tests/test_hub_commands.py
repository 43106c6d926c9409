"""Export to Hugging Face's format and import again by the command line, without loss."""

import json

import pytest
import torch

from megaptm.commands.evaluate import evaluate_command
from megaptm.commands.export import export_group
from megaptm.commands.imports import import_group
from megaptm.data import open_mix
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.errors import UserError
from megaptm.inference.loaded_model import load_model
from megaptm.models.initial import initial_value
from megaptm.resilience.events import read_events
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import read_config
from megaptm.track import read_metrics
from tests.commands import run_command
from tests.forked import megaptm
from tests.train.runs import build, save_untrained, settings, write_text

transformers = pytest.importorskip("transformers")
CLASSES = {"gpt2": "AutoModelForCausalLM", "bert": "BertForPreTraining", "t5": "T5ForConditionalGeneration"}


@pytest.fixture(scope="module", params=list(CLASSES))
def exported(request, tmp_path_factory):
    """Return family, corpus, run and the folder of `export hf`."""
    family, folder = request.param, tmp_path_factory.mktemp(request.param)
    corpus = build(write_text(folder / "tales"), folder / "corpus", family)
    run, _ = save_untrained(family, folder / "run", corpus)
    run_command(export_group, "hf", run, folder / "exported")
    return family, corpus, run, folder / "exported"


def test_exported_model_has_equal_logits_in_transformers(exported):
    family, _, run, folder = exported
    trained = load_model(run)
    reference = getattr(transformers, CLASSES[family]).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("The cat saw the hat.", return_tensors="pt")["input_ids"]
    batch = {"tokens": tokens}
    more = {}
    if family == "bert":
        batch["segments"] = torch.zeros_like(tokens)
    if family == "t5":
        batch["decoder_tokens"] = more["decoder_input_ids"] = torch.tensor([[0, 5, 6]])
    with torch.inference_mode():
        model, logits = trained.model.logits(batch), reference(input_ids=tokens, **more)
    if family == "bert":
        torch.testing.assert_close(logits.prediction_logits, model["mlm"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logits.seq_relationship_logits, model["next-sentence"], rtol=1e-4, atol=1e-5)
    else:
        torch.testing.assert_close(logits.logits, model["lm"], rtol=1e-4, atol=1e-5)


def test_imported_model_has_equal_loss(exported, tmp_path):
    _, corpus, run, folder = exported
    again = tmp_path / "again"
    same = [f"data.mix={{{corpus}: 1}}", "data.sequence=32", "layout.microbatch=2"]
    output = run_command(import_group, "hf", folder, again, *same)
    assert output.startswith(f"{folder} is step 0 of {again}")
    assert f"train {again}" in output
    assert "corpus build" not in output
    before, after = (
        json.loads(run_command(evaluate_command, where, "--rows", "8", "--json")) for where in (run, again)
    )
    assert after["losses"] == before["losses"]
    assert (before["step"], after["step"]) == (7, 0)


def test_imported_model_can_be_trained(tmp_path):
    corpus = build(write_text(tmp_path / "tales"), tmp_path / "corpus", "gpt2")
    first, again, folder = tmp_path / "first", tmp_path / "again", tmp_path / "exported"
    megaptm("train", *settings("gpt2", first, corpus, "train.steps=12"))
    run_command(export_group, "hf", first, folder)
    run_command(import_group, "hf", folder, again, f"data.mix={{{corpus}: 1}}", "data.sequence=32", "train.seed=5")

    trained = load_model(again)
    config = trained.config
    special = trained.tokenizer.special
    mix = open_mix(config.data.mix, objective="causal-lm", sequence=32, seed=config.train.seed, special=special)
    batch = batch_to_tensors(stack_samples(mix, range(config.train.batch)))
    total, words = trained.model(batch).losses["lm"]

    megaptm("train", again, "train.steps=2", "train.log_every=1", "track.enabled=false", "layout.tensor=2")
    resumed = next(event for event in read_events(again) if event["kind"] == "resume")
    assert resumed["step"] == 0
    losses = {record["step"]: record["loss"] for record in read_metrics(again) if "loss" in record}
    assert losses[1] == pytest.approx(float(total / words), rel=1e-5)
    assert load_model(again).step == 2


def test_unilm_starts_from_bert(tmp_path):
    """arXiv:1905.03197, section 2.4: the weights are initialized from BERT."""
    corpus = build(write_text(tmp_path / "tales"), tmp_path / "corpus", "bert")
    run, _ = save_untrained("bert", tmp_path / "bert", corpus)
    run_command(export_group, "hf", run, tmp_path / "exported")
    again = tmp_path / "unilm"
    output = run_command(import_group, "hf", tmp_path / "exported", again, "model.family=unilm")
    assert "unilm/custom" in output
    initial = load_model(again).model.embed.segment.weight
    megaptm("train", *settings("unilm", again, corpus, "train.steps=1", "train.log_every=1"))
    assert next(event for event in read_events(again) if event["kind"] == "resume")["step"] == 0
    moved = load_model(again)
    assert (moved.step, moved.config.objective) == (1, "unilm")
    assert not moved.model.embed.segment.weight.equal(initial)


def test_failed_import_leaves_no_files(exported, tmp_path):
    _, _, run, folder = exported
    cases = [
        (["train.stpes=4"], "unknown key train.stpes"),
        (["model.layers=3"], "only these keys of it can be set: model.dropout"),
    ]
    for overrides, errors in cases:
        with pytest.raises(UserError, match=errors):
            run_command(import_group, "hf", folder, tmp_path / "again", *overrides)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"is a Hugging Face model, not a run: import it to start a run"):
        read_config(folder)
    with pytest.raises(UserError, match="is a run of megaptm: continue it with `megaptm train`"):
        run_command(import_group, "hf", run, tmp_path / "again")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="exists and is not empty"):
        run_command(import_group, "hf", folder, tmp_path / "full")


def test_corpus_with_more_ids_is_refused_on_import(tmp_path):
    small, large = (build(write_text(tmp_path / name), tmp_path / f"{name}-corpus", name) for name in ("bert", "gpt2"))
    run, _ = save_untrained("bert", tmp_path / "run", small)
    run_command(export_group, "hf", run, tmp_path / "exported")
    with pytest.raises(UserError, match=r"has 300 ids, more than the 150 of the model: import without data\.mix"):
        run_command(import_group, "hf", tmp_path / "exported", tmp_path / "again", f"data.mix={{{large}: 1}}")
    assert not (tmp_path / "again").exists()
    # The vocabulary of a started or imported run cannot change.
    run_command(import_group, "hf", tmp_path / "exported", tmp_path / "again")
    with pytest.raises(UserError, match=rf"build the corpus with tokenizer={tmp_path / 'again' / 'tokenizer'}\.$"):
        RunCorpora(read_config(tmp_path / "again", [f"data.mix={{{large}: 1}}"]))


def test_missing_head_is_initialized_and_reported(tmp_path):
    corpus = build(write_text(tmp_path / "tales"), tmp_path / "corpus", "bert")
    run, _ = save_untrained("bert", tmp_path / "run", corpus)
    run_command(export_group, "hf", run, tmp_path / "whole")
    reference = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "whole")
    reference.save_pretrained(tmp_path / "exported")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "exported")

    output = run_command(import_group, "hf", tmp_path / "exported", tmp_path / "again", "train.seed=5")
    absent = "head.next-sentence.pooler, head.next-sentence.classify"
    assert f"has no {absent}: initialized from train.seed=5" in output
    again = tmp_path / "again"
    assert f"out={again}/corpus tokenizer={again}/tokenizer" in output
    [event] = [event for event in read_events(tmp_path / "again") if event["kind"] == "import"]
    assert event["new_heads"] == absent.split(", ")
    model, before = (dict(load_model(folder).model.named_parameters()) for folder in (tmp_path / "again", run))
    for name, value in model.items():
        is_new = name.startswith("head.next-sentence")
        expected = initial_value(load_model(run).spec, name, tuple(value.shape), 5) if is_new else before[name]
        assert value.equal(expected), name


def test_published_size_is_recognized(tmp_path):
    from megaptm.families import CATALOGUE
    from megaptm.hub.import_run import _size_name
    from megaptm.spec import published_spec

    assert _size_name(published_spec(CATALOGUE["t5"], "3b")) == "3b"
    assert _size_name(published_spec(CATALOGUE["gpt2"], "medium")) == "medium"


def test_export_prints_how_to_load_it(tmp_path):
    corpus = build(write_text(tmp_path / "tales"), tmp_path / "corpus", "bert")
    words = "objective={replaced-token-detection: {}, next-sentence: {}}"
    run, _ = save_untrained("electra", tmp_path / "run", corpus, words)
    lines = run_command(export_group, "hf", run, tmp_path / "out").splitlines()
    names = {"transformers": transformers}
    loaded = [type(eval(line.strip(), names)).__name__ for line in lines if line.startswith("  transformers.")]
    assert loaded[:2] == ["ElectraForPreTraining", "ElectraForMaskedLM"]
    assert len(loaded) == 3
    assert lines[-1] == "not exported, because these classes have no such head: next-sentence"


def test_full_export_folder_is_rejected_before_torch_is_loaded(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").touch()
    with pytest.raises(UserError, match="out exists and is not empty: export to a new folder"):
        run_command(export_group, "hf", tmp_path / "absent", tmp_path / "out")
