"""What `megaptm evaluate` measures, and what it leaves in the run folder."""

import json
import math
from dataclasses import fields
from inspect import signature

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from megaptm.commands.evaluate import evaluate as command
from megaptm.config import load
from megaptm.data import open_mix
from megaptm.data.loader import as_tensors, stacked
from megaptm.errors import UserError
from megaptm.inference.evaluate import record
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.inference.loaded_model import LoadedModel, open_run
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
def test_the_loss_is_the_mean_over_all_that_is_asked(family, corpora, tmp_path):
    run, model = save_untrained(family, tmp_path / "run", corpora[family])
    trained = open_run(run)
    found = trained.evaluate()
    mix = held_out(trained)
    assert found.rows == mix.fresh_samples
    nats, asked = 0.0, 0
    for number in range(mix.fresh_samples):  # one by one, by plain cross-entropy on logits
        row = as_tensors(stacked(mix, [number]))
        logits = model.logits(row)["mlm" if family == "bert" else "lm"][0]
        if "masked_positions" in row:
            logits = logits[row["masked_positions"][0]]
        nats += float(F.cross_entropy(logits, row["labels"][0], reduction="sum"))
        asked += int((row["labels"] != -100).sum())
    loss = found.losses["mlm" if family == "bert" else "lm"]
    assert loss.asked == asked
    assert loss.model == pytest.approx(nats / asked, rel=1e-5)


def test_what_is_remembered_of_rows_before_is_an_option(text, corpora, tmp_path):
    """Transformer-XL's released code has three for evaluation: `mem_len`, `clamp_len` and `same_length`."""
    corpus = build(text, text.parent / "bytes", "transformer-xl-bytes")
    run, _ = save_untrained("transformer-xl-bytes", tmp_path / "run", corpus)
    trained = open_run(run)
    for parameter in trained.model.parameters():
        parameter.mul_(10)  # as it begins, it hardly heeds what it sees

    def loss(**options):
        return trained.evaluate(rows=24, **options).losses["lm"].model

    said = [loss(), loss(memory=0), loss(memory=20), loss(farthest=3), loss(same_length=True)]
    assert len({round(loss, 4) for loss in said}) == len(said), said
    assert loss(memory=trained.spec.size.memory) == said[0]
    with pytest.raises(UserError, match="same_length is for a decoder that attends to what it remembers, and gpt2"):
        open_run(save_untrained("gpt2", tmp_path / "gpt2", corpora["gpt2"])[0]).evaluate(same_length=True)


@pytest.mark.parametrize(("option", "least"), [("rows", 1), ("sequence", 4), ("memory", 0), ("farthest", 1)])
def test_a_number_that_is_too_small_is_told_by_the_command_and_in_python(option, least):
    with pytest.raises(UserError, match=rf"^{option} \({least - 1}\) must be {least} or more\.$"):
        EvaluationOptions(**{option: least - 1})
    said = CliRunner().invoke(command, ["here", f"--{option}", str(least - 1)])
    assert said.exit_code == 2
    assert f"{least - 1} is not in the range x>={least}" in said.output


def test_python_has_the_options_of_the_command():
    named = {name for name, one in signature(LoadedModel.evaluate).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert named == {one.name for one in fields(EvaluationOptions)}


def test_only_what_was_read_as_in_training_is_kept_with_the_run():
    assert EvaluationOptions(rows=4).as_trained
    assert not EvaluationOptions(memory=0).as_trained
    assert not EvaluationOptions(same_length=True).as_trained


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_an_opinion_is_as_good_as_uniform(family, corpora, tmp_path):
    run, _ = save_untrained(family, tmp_path / "run", corpora[family])
    trained = open_run(run)
    for parameter in trained.model.parameters():
        parameter.zero_()
    found = trained.evaluate(rows=8)
    for name, loss in found.losses.items():
        # The model chooses among all rows of its table, uniform among the ids of the tokenizer.
        possible = 2 if name == "next-sentence" else trained.spec.vocabulary
        assert loss.model == pytest.approx(math.log(possible), rel=1e-5)
    assert set(found.losses) == ({"mlm", "next-sentence"} if family == "bert" else {"lm"})


def test_unigram_knows_how_often_each_answer_comes_and_no_more(corpora, tmp_path):
    trained = open_run(save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])[0])
    found = trained.evaluate()
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
    # Not to the last digit: the order of rows, and so which tokens the last one cuts off, depends on the seed.
    assert found.losses["lm"].unigram == pytest.approx(expected, rel=1e-2)
    assert found.losses["lm"].unigram < 0.8 * found.losses["lm"].uniform
    assert found.losses["lm"].uniform == pytest.approx(math.log(size))


def test_unigram_knows_what_share_of_the_tokens_is_replaced(corpora, tmp_path):
    """A discriminator that says the same of each token tells the share by its loss: log(1 + e) - share."""
    trained = open_run(save_untrained("electra", tmp_path / "run", corpora["bert"])[0])
    classify = trained.model.head["replaced-token"].classify
    torch.nn.init.zeros_(classify.weight)
    torch.nn.init.ones_(classify.bias)
    loss = trained.evaluate(rows=20).losses["replaced-token"]
    share = math.log(1 + math.e) - loss.model
    assert 0.05 < share < 0.25
    assert loss.unigram == pytest.approx(-share * math.log(share) - (1 - share) * math.log(1 - share), rel=1e-4)
    assert loss.uniform == pytest.approx(math.log(2))


def test_who_guesses_takes_any_of_the_rows_that_are_compared(corpora, tmp_path):
    """Places of answers are beyond the number of rows; and only some rows of a batch are compared."""
    asked = ("objective={words: {task: masked-lm, share: 1}, infomax: {share: 1}}", "train.batch=8", "data.sequence=64")
    trained = open_run(save_untrained("bert", tmp_path / "run", corpora["bert"], *asked)[0])
    torch.nn.init.zeros_(trained.model.head["infomax"].project.weight)
    loss = trained.evaluate(rows=24).losses["infomax"]
    assert 6 < loss.asked < 18
    assert loss.model == pytest.approx(loss.unigram)
    assert loss.unigram == loss.uniform < math.log(8)


def test_bits_per_byte_count_the_text_that_was_predicted(corpora, tmp_path):
    trained = open_run(save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])[0])
    found = trained.evaluate()
    folder = corpora["gpt2"]
    split = json.loads((folder / "manifest.json").read_text())["splits"]["validation"]
    bits = found.losses["lm"].model / math.log(2) * (split["tokens"] + split["samples"])
    assert found.bits_per_byte("model") == pytest.approx(bits / split["bytes"])
    bert = open_run(save_untrained("bert", tmp_path / "bert", corpora["bert"])[0])
    assert bert.evaluate(rows=4).plain()["bits_per_byte"] is None


def test_the_first_rows_are_the_same_rows_every_time(corpora, tmp_path):
    trained = open_run(save_untrained("bert", tmp_path / "run", corpora["bert"])[0])
    assert trained.evaluate(rows=3) == trained.evaluate(rows=3)
    assert trained.evaluate(rows=3) != trained.evaluate(rows=5)


def test_a_corpus_of_another_tokenizer_is_refused(corpora, text, tmp_path):
    trained = open_run(save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])[0])
    other = build(write_text(tmp_path / "others", seed=1), tmp_path / "other", "gpt2")
    with pytest.raises(UserError, match=r"was built with another tokenizer than the run's: build it with tokenizer="):
        trained.evaluate(corpora={str(other): 1.0})


def test_what_was_found_is_kept_with_the_run_and_costs_it_no_time(corpora, tmp_path):
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])
    job = [
        {"time": 10, "kind": "launch"},
        {"time": 15, "kind": "start"},
        {"time": 30, "kind": "exit", "productive": 14},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in job))
    trained = open_run(run)
    found = trained.evaluate(rows=4)
    record(trained.config, found)
    assert json.loads((run / "evaluation.json").read_text()) == found.plain()
    (metrics,) = read_metrics(run)
    assert metrics["step"] == 7
    assert metrics["evaluation/lm"] == found.losses["lm"].model
    assert metrics["baseline/unigram"] == found.losses["lm"].unigram
    assert read_events(run)[-1]["kind"] == "evaluation"
    assert time_spent(job_times(read_events(run), read_metrics(run))).wall == 20


def test_the_command_prints_a_table_or_json(corpora, tmp_path):
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])
    table = CliRunner().invoke(command, [str(run), "--rows", "4"], catch_exceptions=False)
    assert "4 held-out rows" in table.stdout
    assert table.stderr.rstrip().endswith("recording the result in the run folder")  # metrics go nowhere else here
    assert [line.split()[0] for line in table.stdout.splitlines()[2:]] == ["model", "unigram", "uniform"]
    plain = CliRunner().invoke(command, [str(run), "--rows", "4", "--json"], catch_exceptions=False)
    assert json.loads(plain.stdout) == json.loads((run / "evaluation.json").read_text())


def test_another_corpus_leaves_no_trace_in_the_run(corpora, text, tmp_path):
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"])
    same = build(text, tmp_path / "same", "gpt2")
    done = CliRunner().invoke(command, [str(run), "--rows", "4", "--corpus", str(same)], catch_exceptions=False)
    assert done.exit_code == 0
    assert not (run / "evaluation.json").exists()
    assert load(run / "config.yaml").data.mix == {str(corpora["gpt2"]): 1.0}


def test_the_model_is_the_one_that_was_saved(corpora, tmp_path):
    run, model = save_untrained("t5", tmp_path / "run", corpora["t5"])
    trained = open_run(run)
    assert trained.step == 7
    for name, value in trained.model.named_parameters():
        assert torch.equal(value.cpu(), model.get_parameter(name))


def test_a_question_that_no_row_asks_is_told(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(40):  # documents of one sentence, about which an order cannot be asked
        (tmp_path / f"text/{number}.txt").write_text(f"the cat saw {number} dogs by the river and went on to the house")
    corpus = build(tmp_path / "text", tmp_path / "corpus", "bert")
    asked = ("objective={masked-lm: {}, sentence-order: {}}", "data.sequence=16")
    run, _ = save_untrained("bert", tmp_path / "run", corpus, *asked)
    with pytest.raises(UserError, match=r"^nothing is asked for sentence-order in 2 held-out rows of .*: take more\.$"):
        open_run(run).evaluate(rows=2)


def test_the_weights_are_those_of_the_step_that_was_trained_last(corpora, tmp_path):
    changing = "objective={causal-lm: {weight: {0: 1.0, 6: 2.0, 7: 3.0}}}"  # step 7 is the eighth
    run, _ = save_untrained("gpt2", tmp_path / "run", corpora["gpt2"], changing)
    assert open_run(run).evaluate(rows=2).weights == {"lm": 2.0}
