"""Losses and baselines of `megaptm evaluate`, and its files in the run folder."""

import json
import math
from dataclasses import fields
from inspect import signature

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from megaptm.commands.evaluate import evaluate_command as command
from megaptm.config import load_config
from megaptm.data import open_mix
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.errors import UserError
from megaptm.inference.evaluate import record_evaluation
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.inference.loaded_model import LoadedModel, load_model
from megaptm.resilience.events import read_events
from megaptm.run.time_spent import job_times, time_spent
from megaptm.track import read_metrics
from tests.train.runs import build, save_untrained, write_text

FAMILIES = ["gpt2", "bert", "t5"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "tales")


@pytest.fixture(scope="module")
def corpora(text):
    return {family: build(text, text.parent / family, family) for family in FAMILIES}


def held_out(trained):
    config = trained.config
    return open_mix(
        config.data.mix,
        split="validation",
        objective=config.objective,
        sequence=config.data.sequence,
        seed=config.train.seed,
        special=trained.tokenizer.special,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_is_the_mean_over_all_labels(family, corpora, tmp_path):
    run, model = save_untrained(family, tmp_path / "run", corpora[family])
    trained = load_model(run)
    evaluation = trained.evaluate()
    mix = held_out(trained)
    assert evaluation.rows == mix.fresh_samples
    nats, num_labels = 0.0, 0
    for index in range(mix.fresh_samples):  # one by one, by plain cross-entropy on logits
        sample = batch_to_tensors(stack_samples(mix, [index]))
        logits = model.logits(sample)["mlm" if family == "bert" else "lm"][0]
        if "masked_positions" in sample:
            logits = logits[sample["masked_positions"][0]]
        nats += float(F.cross_entropy(logits, sample["labels"][0], reduction="sum"))
        num_labels += int((sample["labels"] != -100).sum())
    loss = evaluation.losses["mlm" if family == "bert" else "lm"]
    assert loss.num_labels == num_labels
    assert loss.model == pytest.approx(nats / num_labels, rel=1e-5)


def test_recurrence_cache_options_change_the_loss(text, corpora, tmp_path):
    """Transformer-XL's released code has three for evaluation: `mem_len`, `clamp_len` and `same_length`."""
    corpus = build(text, text.parent / "bytes", "transformer-xl-bytes")
    run, _ = save_untrained("transformer-xl-bytes", tmp_path / "run", corpus)
    trained = load_model(run)
    for parameter in trained.model.parameters():
        parameter.mul_(10)  # initial attention hardly depends on its inputs

    def loss(**options):
        return trained.evaluate(rows=24, **options).losses["lm"].model

    losses = [loss(), loss(memory=0), loss(memory=20), loss(farthest=3), loss(same_length=True)]
    assert len({round(value, 4) for value in losses}) == len(losses), losses
    assert loss(memory=trained.spec.size.memory) == losses[0]
    with pytest.raises(UserError, match="same_length needs a decoder with a recurrence cache, which gpt2"):
        load_model(save_untrained("gpt2", tmp_path / "gpt2", corpora["gpt2"])[0]).evaluate(same_length=True)


@pytest.mark.parametrize(("option", "minimum"), [("rows", 1), ("sequence", 4), ("memory", 0), ("farthest", 1)])
def test_too_small_option_is_an_error(option, minimum):
    with pytest.raises(UserError, match=rf"^{option} \({minimum - 1}\) must be {minimum} or more\.$"):
        EvaluationOptions(**{option: minimum - 1})
    result = CliRunner().invoke(command, ["here", f"--{option}", str(minimum - 1)])
    assert result.exit_code == 2
    assert f"{minimum - 1} is not in the range x>={minimum}" in result.output


def test_python_and_command_have_the_same_options():
    parameters = signature(LoadedModel.evaluate).parameters.values()
    keywords = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    assert keywords == {field.name for field in fields(EvaluationOptions)}


def test_options_that_differ_from_training_are_recognized():
    assert EvaluationOptions(rows=4).as_trained
    assert not EvaluationOptions(memory=0).as_trained
    assert not EvaluationOptions(same_length=True).as_trained


@pytest.mark.parametrize("family", FAMILIES)
def test_zero_weights_have_the_uniform_loss(family, corpora, tmp_path):
    run, _ = save_untrained(family, tmp_path / "run", corpora[family])
    trained = load_model(run)
    for parameter in trained.model.parameters():
        parameter.zero_()
    evaluation = trained.evaluate(rows=8)
    for name, loss in evaluation.losses.items():
        # The model's table may have more rows than the tokenizer has ids.
        possible = 2 if name == "next-sentence" else trained.spec.vocabulary
        assert loss.model == pytest.approx(math.log(possible), rel=1e-5)
    assert set(evaluation.losses) == ({"mlm", "next-sentence"} if family == "bert" else {"lm"})


def test_unigram_baseline_uses_training_frequencies(corpora, tmp_path):
    trained = load_model(save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])[0])
    evaluation = trained.evaluate()
    special, size = trained.tokenizer.special, trained.tokenizer.vocabulary
    ids = {}
    for split in ("train", "validation"):
        mix = open_mix(
            trained.config.data.mix, split=split, objective="causal-lm", sequence=32, seed=0, special=special
        )
        rows = [mix.sample(number)["labels"] for number in range(mix.fresh_samples)]
        ids[split] = np.concatenate(rows)
        ids[split] = ids[split][ids[split] != -100]
    frequencies = np.bincount(ids["train"], minlength=size) + 1
    expected = -np.log(frequencies / frequencies.sum())[ids["validation"]].mean()
    # Approximate: the order of samples, and the tokens that the last one cuts off, depend on the seed.
    assert evaluation.losses["lm"].unigram == pytest.approx(expected, rel=1e-2)
    assert evaluation.losses["lm"].unigram < 0.8 * evaluation.losses["lm"].uniform
    assert evaluation.losses["lm"].uniform == pytest.approx(math.log(size))


def test_unigram_baseline_of_replaced_tokens_is_their_share(corpora, tmp_path):
    """The loss of a constant discriminator is log(1 + e) - share."""
    trained = load_model(save_untrained("electra", tmp_path / "run", corpora["bert"])[0])
    classify = trained.model.head["replaced-token"].classify
    torch.nn.init.zeros_(classify.weight)
    torch.nn.init.ones_(classify.bias)
    loss = trained.evaluate(rows=20).losses["replaced-token"]
    share = math.log(1 + math.e) - loss.model
    assert 0.05 < share < 0.25
    assert loss.unigram == pytest.approx(-share * math.log(share) - (1 - share) * math.log(1 - share), rel=1e-4)
    assert loss.uniform == pytest.approx(math.log(2))


def test_contrastive_baseline_is_chance_among_compared_samples(corpora, tmp_path):
    """Only some samples of a batch are compared."""
    overrides = (
        "objective={words: {task: masked-lm, share: 1}, infomax: {share: 1}}",
        "train.batch=8",
        "data.sequence=64",
    )
    trained = load_model(save_untrained("bert", tmp_path / "run", corpora["bert"], *overrides)[0])
    torch.nn.init.zeros_(trained.model.head["infomax"].project.weight)
    loss = trained.evaluate(rows=24).losses["infomax"]
    assert 6 < loss.num_labels < 18
    assert loss.model == pytest.approx(loss.unigram)
    assert loss.unigram == loss.uniform < math.log(8)


def test_bits_per_byte_use_the_bytes_of_the_text(corpora, tmp_path):
    trained = load_model(save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])[0])
    evaluation = trained.evaluate()
    folder = corpora["gpt2"]
    split = json.loads((folder / "manifest.json").read_text())["splits"]["validation"]
    bits = evaluation.losses["lm"].model / math.log(2) * (split["tokens"] + split["samples"])
    assert evaluation.bits_per_byte("model") == pytest.approx(bits / split["bytes"])
    bert = load_model(save_untrained("bert", tmp_path / "bert", corpora["bert"])[0])
    assert bert.evaluate(rows=4).to_json()["bits_per_byte"] is None


def test_evaluation_is_deterministic(corpora, tmp_path):
    trained = load_model(save_untrained("bert", tmp_path / "run", corpora["bert"])[0])
    assert trained.evaluate(rows=3) == trained.evaluate(rows=3)
    assert trained.evaluate(rows=3) != trained.evaluate(rows=5)


def test_corpus_of_another_tokenizer_is_rejected(corpora, text, tmp_path):
    trained = load_model(save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])[0])
    other = build(write_text(tmp_path / "others", seed=1), tmp_path / "other", "gpt2")
    with pytest.raises(UserError, match=r"was built with another tokenizer than the run: build it with tokenizer="):
        trained.evaluate(corpora={str(other): 1.0})


def test_recorded_evaluation_does_not_count_as_run_time(corpora, tmp_path):
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])
    job = [
        {"time": 10, "kind": "launch"},
        {"time": 15, "kind": "start"},
        {"time": 30, "kind": "exit", "productive": 14},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in job))
    trained = load_model(run)
    evaluation = trained.evaluate(rows=4)
    record_evaluation(trained.config, evaluation)
    assert json.loads((run / "evaluation.json").read_text()) == evaluation.to_json()
    (metrics,) = read_metrics(run)
    assert metrics["step"] == 7
    assert metrics["evaluation/lm"] == evaluation.losses["lm"].model
    assert metrics["baseline/unigram"] == evaluation.losses["lm"].unigram
    assert read_events(run)[-1]["kind"] == "evaluation"
    assert time_spent(job_times(read_events(run), read_metrics(run))).wall == 20


def test_evaluate_command_prints_table_or_json(corpora, tmp_path):
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])
    table = CliRunner().invoke(command, [str(run), "--rows", "4"], catch_exceptions=False)
    assert "4 held-out samples" in table.stdout
    assert table.stderr.rstrip().endswith("recording the result in the run folder")  # no tracking server is configured
    assert [line.split()[0] for line in table.stdout.splitlines()[2:]] == ["model", "unigram", "uniform"]
    plain = CliRunner().invoke(command, [str(run), "--rows", "4", "--json"], catch_exceptions=False)
    assert json.loads(plain.stdout) == json.loads((run / "evaluation.json").read_text())


def test_evaluation_of_another_corpus_does_not_change_the_run(corpora, text, tmp_path):
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])
    same = build(text, tmp_path / "same", "gpt2")
    done = CliRunner().invoke(command, [str(run), "--rows", "4", "--corpus", str(same)], catch_exceptions=False)
    assert done.exit_code == 0
    assert not (run / "evaluation.json").exists()
    assert load_config(run / "config.yaml").data.mix == {str(corpora["gpt2"]): 1.0}


def test_loaded_weights_are_the_saved_weights(corpora, tmp_path):
    run, model = save_untrained("t5", tmp_path / "run", corpora["t5"])
    trained = load_model(run)
    assert trained.step == 7
    for name, value in trained.model.named_parameters():
        assert torch.equal(value.cpu(), model.get_parameter(name))


def test_loss_without_labels_is_an_error(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(40):  # documents of one sentence have no order of sentences
        (tmp_path / f"text/{number}.txt").write_text(f"the cat saw {number} dogs by the river and went on to the house")
    corpus = build(tmp_path / "text", tmp_path / "corpus", "bert")
    overrides = ("objective={masked-lm: {}, sentence-order: {}}", "data.sequence=16")
    run, _ = save_untrained("bert", tmp_path / "run", corpus, *overrides)
    with pytest.raises(
        UserError, match=r"^2 held-out samples of .* have no label for sentence-order: evaluate more samples\.$"
    ):
        load_model(run).evaluate(rows=2)


def test_loss_weights_are_those_of_the_last_step(corpora, tmp_path):
    changing = "objective={causal-lm: {weight: {0: 1.0, 6: 2.0, 7: 3.0}}}"  # step 7 is the eighth
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"], changing)
    assert load_model(run).evaluate(rows=2).weights == {"lm": 2.0}
