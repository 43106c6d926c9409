"""`megaptm plan` as it is typed."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests import ROOT
from tests.bad_input.mistakes import told

CONFIGS = ROOT / "configs"


def said(*words: str) -> str:
    done = CliRunner().invoke(main, ["plan", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_plan_of_the_175b_is_told():
    text = said(CONFIGS / "gpt3/175b.yaml")
    for words in ("174,604,259,328 parameters", "128 x 8 A100 80 GB", "fits:", "pipeline bubble", "device hours"):
        assert words in text


def test_json_is_read_back_and_adds_up():
    numbers = json.loads(said(CONFIGS / "gpt3/175b.yaml", "--json"))
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


def test_nodes_set_the_number_of_data_ranks():
    numbers = json.loads(said(CONFIGS / "gpt3/13b.yaml", "--nodes", "8", "--json"))
    assert (numbers["devices"], numbers["nodes"]) == (64, 8)


def test_a_config_that_is_too_large_is_told_so():
    text = said(CONFIGS / "gpt3/13b.yaml", "layout={data: 8, microbatch: 1}", "--machine", "rtx4090")
    assert "DOES NOT FIT" in text


def test_a_search_ranks_and_says_why_not():
    text = said(CONFIGS / "gpt3/6.7b.yaml", "--nodes", "4", "--search")
    assert "legal layouts" in text
    assert "Refused:" in text
    assert "MFU" in text


def test_what_a_search_finds_can_be_pasted():
    """The overrides give the layout that was planned, whatever layouts the file has."""
    path, words = CONFIGS / "gpt3/6.7b.yaml", ("--nodes", "4", "--search")
    text, numbers = said(path, *words), json.loads(said(path, *words, "--json"))
    pasted = text.split("to paste after the config:\n")[1].split()
    assert pasted == numbers["overrides"]
    found = json.loads(said(path, *pasted, "--json"))
    assert (found["layout"], found["devices"]) == (numbers["layout"], 32)
    assert "overrides" not in found


def test_a_search_needs_no_legal_layout_and_takes_any_batch():
    """Seven tensor ranks divide no heads, eight data ranks not 1,000 rows: a search is for who has no layout."""
    words = ("layout.tensor=7", "train.batch=1000", "--nodes", "5", "--search", "--json")
    numbers = json.loads(said(CONFIGS / "gpt3/13b.yaml", *words))
    assert numbers["devices"] == 40
    assert 1000 % (numbers["layout"]["data"] * numbers["layout"]["microbatch"]) == 0
    assert numbers["fits"] is True


def test_without_nodes_a_search_keeps_the_number_of_devices_that_is_written():
    layout = "layout={data: 3, tensor: 8, pipeline: 1, virtual: 1, microbatch: 7, sequence_parallel: false}"
    numbers = json.loads(said(CONFIGS / "gpt3/13b.yaml", layout, "train.batch=768", "--search", "--json"))
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
        (["--nodes", "3", "--search"], "no layout fits: the smallest needs"),
        (["--nodes", "32", "layout.microbatch=5"], "train.batch (1536) must be a multiple of"),
        (["--machine", "v100-32g"], "V100 32 GB has no peak for bf16"),
    ],
)
def test_a_mistake_is_one_sentence(words, expected):
    assert expected in told("plan", CONFIGS / "gpt3/175b.yaml", *words)


def test_more_devices_than_rows_are_refused_with_the_reason():
    sentence = told("plan", CONFIGS / "gpt2/small.yaml", "--nodes", "1000", "--search")
    assert "no layout is possible: the batch is not a multiple of data ranks x micro-batch" in sentence


def test_neither_torch_nor_matplotlib_is_loaded_for_a_table():
    loading = (
        "import sys; from click.testing import CliRunner; from megaptm.__main__ import main; "
        f"CliRunner().invoke(main, ['plan', {str(CONFIGS / 'gpt3/175b.yaml')!r}], catch_exceptions=False); "
        "sys.exit(bool({'torch', 'matplotlib', 'megatron'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", loading], check=False, cwd=ROOT).returncode == 0
