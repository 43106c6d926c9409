"""The command `megaptm plan`."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests import ROOT
from tests.bad_input.commands import user_error

CONFIGS = ROOT / "configs"


def run_plan(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_plan_of_gpt3_175b():
    text = run_plan(CONFIGS / "gpt3/175b.yaml")
    assert "174,604,259,328 parameters" in text
    assert "128 x 8 A100 80 GB" in text
    assert "fits:" in text
    assert "pipeline bubble" in text
    assert "device hours" in text


def test_plan_names_the_published_vocabulary_of_a_custom_model():
    """`check` counts the parameters with the vocabulary of the corpus."""
    assert "vocabulary of 50,265, as published" in run_plan(CONFIGS / "roberta/tiny.yaml")
    assert "vocabulary of" not in run_plan(CONFIGS / "roberta/tiny.yaml", "model.vocabulary=8192")


def test_json_parts_add_up():
    numbers = json.loads(run_plan(CONFIGS / "gpt3/175b.yaml", "--json"))
    parts = {
        key: value
        for key, value in numbers["step"].items()
        if key not in ("seconds", "mfu", "hfu", "tokens_per_second")
    }
    assert sum(parts.values()) == pytest.approx(numbers["step"]["seconds"])
    for stage in numbers["memory"]["stages"]:
        assert sum(stage.values()) == pytest.approx(2 * stage["total"])
    assert numbers["devices"] == 1024
    assert numbers["fits"] is True


def test_stages_of_palm_540b():
    """Its 118 layers cannot be divided by 12."""
    options = ("devices=768", "layout.pipeline=12", "layout.recompute=attention")
    numbers = json.loads(run_plan(CONFIGS / "palm/540b.yaml", *options, "--json"))
    assert numbers["fits"]
    assert sum(numbers["layout"]["layers_per_stage"]) == 118
    assert len(numbers["stage_seconds"]) == len(numbers["memory"]["stages"]) == 12
    assert max(numbers["stage_seconds"]) < 1.15 * min(numbers["stage_seconds"])
    text = run_plan(CONFIGS / "palm/540b.yaml", *options)
    assert "pipeline 12 of 9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 9 layers" in " ".join(text.split())
    assert "on the slowest stage" in text


def test_planned_layout_of_a_machine():
    result = CliRunner().invoke(
        main, ["plan", str(CONFIGS / "gpt2/small.yaml"), "layout=auto", "--machine", "h100-80g"]
    )
    assert result.exit_code == 0
    assert "layout auto: data 8 x tensor 1 x pipeline 1" in " ".join(result.stderr.split())


def test_nodes_set_data_ranks():
    numbers = json.loads(run_plan(CONFIGS / "gpt3/13b.yaml", "--nodes", "8", "--json"))
    assert (numbers["devices"], numbers["nodes"]) == (64, 8)


def test_config_that_does_not_fit():
    text = run_plan(CONFIGS / "gpt3/13b.yaml", "layout={data: 8, microbatch: 1}", "--machine", "rtx4090")
    assert "DOES NOT FIT" in text


def test_overrides_of_a_search_give_its_layout():
    """The printed overrides take precedence over the layouts of the file."""
    path, words = CONFIGS / "gpt3/6.7b.yaml", ("--nodes", "4", "--search")
    text, numbers = run_plan(path, *words), json.loads(run_plan(path, *words, "--json"))
    assert "legal layouts" in text
    assert "Rejected:" in text
    assert "MFU" in text
    pasted = text.split("to paste after the config:\n")[1].split()
    assert pasted == numbers["overrides"]
    numbers_of_overrides = json.loads(run_plan(path, *pasted, "--json"))
    assert (numbers_of_overrides["layout"], numbers_of_overrides["devices"]) == (numbers["layout"], 32)
    assert "overrides" not in numbers_of_overrides


def test_search_of_a_config_with_an_illegal_layout():
    """Seven tensor ranks do not divide the heads, and eight data ranks do not divide 1,000 sequences."""
    words = ("layout.tensor=7", "train.batch=1000", "--nodes", "5", "--search", "--json")
    numbers = json.loads(run_plan(CONFIGS / "gpt3/13b.yaml", *words))
    assert numbers["devices"] == 40
    assert 1000 % (numbers["layout"]["data"] * numbers["layout"]["microbatch"]) == 0
    assert numbers["fits"] is True


def test_search_of_a_config_with_full_sharding_keeps_it():
    words = ("layout.full_sharding=true", "--nodes", "4", "--search", "--json")
    layout = json.loads(run_plan(CONFIGS / "gpt3/6.7b.yaml", *words))["layout"]
    assert layout["full_sharding"]
    assert (layout["pipeline"], layout["distributed_optimizer"]) == (1, False)


def test_search_without_nodes_keeps_the_number_of_devices():
    layout = "layout={data: 3, tensor: 8, pipeline: 1, virtual: 1, microbatch: 7, sequence_parallel: false}"
    numbers = json.loads(run_plan(CONFIGS / "gpt3/13b.yaml", layout, "train.batch=768", "--search", "--json"))
    assert numbers["devices"] == 24


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--machine", "h10"], "--machine h10: no such machine"),
        (["--nodes", "0"], "--nodes 0: a job needs at least one node."),
        (["--nodes", "3"], "devices (24) must be a multiple of layout.tensor x layout.pipeline (8 x 8)"),
        (["devices=3", "--search"], "devices (3) must be a multiple of"),
        (["train.nonsense=1", "--search"], "unknown key train.nonsense"),
        (["train.batch=997", "--nodes", "128", "--search"], "no layout is possible: the batch is not a multiple"),
        (["--nodes", "1", "--search"], "no layout fits: the smallest needs"),
        (["--nodes", "32", "layout.microbatch=5"], "train.batch (1536) must be a multiple of"),
        (["--machine", "v100-32g"], "V100 32 GB has no peak for bf16"),
    ],
)
def test_invalid_options(words, expected):
    assert expected in user_error("plan", CONFIGS / "gpt3/175b.yaml", *words)


def test_search_with_more_devices_than_samples():
    sentence = user_error("plan", CONFIGS / "gpt2/small.yaml", "--nodes", "1000", "--search")
    assert "no layout is possible: the batch is not a multiple of data ranks x micro-batch" in sentence


def test_plan_does_not_import_torch():
    loading = (
        "import sys; from click.testing import CliRunner; from megaptm.__main__ import main; "
        f"CliRunner().invoke(main, ['plan', {str(CONFIGS / 'gpt3/175b.yaml')!r}], catch_exceptions=False); "
        "sys.exit(bool({'torch', 'megatron'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", loading], check=False, cwd=ROOT).returncode == 0
