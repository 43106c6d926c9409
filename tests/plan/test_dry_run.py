"""Formulas and the engine agree on ranks that no machine here could hold."""

import json
import subprocess
import sys

import pytest

from megaptm.config import load, resolve_model
from megaptm.plan.count import count_parameters
from tests import ROOT
from tests.bad_input.mistakes import told

CONFIGS = ROOT / "configs"

# Layouts of this model in print have more stages, and chunks, than the one that the planner finds now.
STAGES_16 = ["layout.pipeline=16", "layout.virtual=3", "layout.microbatch=1"]
# arXiv:2104.04473, table 1: the trillion on 3,072 devices.
TRILLION = [
    *("model.size=custom", "model.layers=128", "model.width=25600", "model.heads=160", "model.ffn=102400"),
    *("layout.pipeline=64", "layout.data=6", "layout.virtual=2", "layout.microbatch=1", "train.batch=3072"),
]


def dry(config: str, *words: str) -> dict:
    """Its own process: megatron-core, once loaded, changes torch for all that follow."""
    command = [sys.executable, "-m", "megaptm", "plan", str(CONFIGS / config), *words, "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["dry_run"]


def test_ranks_of_the_175b_on_1024_have_the_planned_parameters():
    found = dry("gpt3/175b.yaml", *STAGES_16, "--ranks", "0,8,511,1023")
    assert [(one["rank"], one["stage"]) for one in found["ranks"]] == [(0, 0), (8, 0), (511, 7), (1023, 15)]
    assert all(one["parameters"] == one["planned"] for one in found["ranks"])


def test_ranks_of_the_trillion_on_3072_have_the_planned_parameters_and_all_of_them_the_model():
    """The first stage, one of the 62 alike, the last: summed over stages and tensor ranks, each parameter once."""
    found = dry("gpt3/175b.yaml", *TRILLION, "--ranks", "0,48,3071")
    assert all(one["parameters"] == one["planned"] for one in found["ranks"])
    assert [one["stage"] for one in found["ranks"]] == [0, 1, 63]
    spec = resolve_model(load(CONFIGS / "gpt3" / "175b.yaml", TRILLION))
    first, middle, last = (one["parameters"] for one in found["ranks"])
    # What every tensor rank has whole: two norms and two biases of a layer, the last norm, positions.
    whole = (spec.size.layers * 6 + 2 + spec.context) * spec.size.width
    twice = (spec.padded_vocabulary + spec.padded_vocabulary - spec.vocabulary) * spec.size.width
    assert 8 * (first + 62 * middle + last) - 7 * whole - twice == count_parameters(spec) == 1_008_014_617_600


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("t5/small.yaml", ["layout={data: 1, tensor: 2, pipeline: 2, microbatch: 4}"]),
        ("gpt3/small.yaml", ["layout={pipeline: 2, virtual: 3, microbatch: 4}", "model.vocabulary=50304"]),
    ],
)
def test_operations_over_all_stages_are_those_of_the_formula(config, words):
    found = dry(config, *words)
    assert found["step_flops"] == found["planned_step_flops"]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [("0,1024", "rank 1024 is not one of the 1,024"), ("first", "write numbers separated by commas")],
)
def test_a_rank_that_is_not_there_is_refused(ranks, expected):
    assert expected in told("plan", CONFIGS / "gpt3/175b.yaml", "--dry-run", "--ranks", ranks)
