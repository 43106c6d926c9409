"""The plan and the engine agree on ranks that would not fit on this machine."""

import json
import subprocess
import sys

import pytest

from megaptm.config import load_config, resolve_model
from megaptm.plan.count import count_parameters
from tests import ROOT
from tests.bad_input.commands import user_error

CONFIGS = ROOT / "configs"

# Published layouts of this model have more stages and chunks than the layout of the config.
STAGES_16 = ["layout.pipeline=16", "layout.virtual=3", "layout.microbatch=1"]
# arXiv:2104.04473, table 1: the trillion on 3,072 devices.
TRILLION = [
    *("model.size=custom", "model.layers=128", "model.width=25600", "model.heads=160", "model.ffn=102400"),
    *("layout.pipeline=64", "layout.data=6", "layout.virtual=2", "layout.microbatch=1", "train.batch=3072"),
]


def dry_run(config: str, *words: str) -> dict:
    """Run a dry run in its own process, because importing megatron-core changes torch."""
    command = [sys.executable, "-m", "megaptm", "plan", str(CONFIGS / config), *words, "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["dry_run"]


def test_parameters_of_ranks_of_gpt3_175b():
    report = dry_run("gpt3/175b.yaml", *STAGES_16, "--ranks", "0,8,511,1023")
    assert [(rank["rank"], rank["stage"]) for rank in report["ranks"]] == [(0, 0), (8, 0), (511, 7), (1023, 15)]
    assert all(rank["parameters"] == rank["planned"] for rank in report["ranks"])


def test_parameters_of_ranks_of_a_trillion_parameter_model():
    """First stage, one of 62 equal stages, last stage: their sum over stages and tensor ranks is the model."""
    report = dry_run("gpt3/175b.yaml", *TRILLION, "--ranks", "0,48,3071")
    assert all(rank["parameters"] == rank["planned"] for rank in report["ranks"])
    assert [rank["stage"] for rank in report["ranks"]] == [0, 1, 63]
    spec = resolve_model(load_config(CONFIGS / "gpt3" / "175b.yaml", TRILLION))
    first, middle, last = (rank["parameters"] for rank in report["ranks"])
    # Replicated on tensor ranks: two norms and two biases of a layer, the final norm, positions.
    replicated = (spec.size.layers * 6 + 2 + spec.context) * spec.size.width
    twice = (spec.padded_vocabulary + spec.padded_vocabulary - spec.vocabulary) * spec.size.width
    assert 8 * (first + 62 * middle + last) - 7 * replicated - twice == count_parameters(spec) == 1_008_014_617_600


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("t5/small.yaml", ["layout={data: 1, tensor: 2, pipeline: 2, microbatch: 4}"]),
        ("gpt3/small.yaml", ["layout={pipeline: 2, virtual: 3, microbatch: 4}", "model.vocabulary=50304"]),
    ],
)
def test_flops_of_all_stages(config, words):
    report = dry_run(config, *words)
    assert report["step_flops"] == report["planned_step_flops"]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [("0,1024", "rank 1024 is not one of the 1,024"), ("first", "write numbers separated by commas")],
)
def test_invalid_ranks(ranks, expected):
    assert expected in user_error("plan", CONFIGS / "gpt3/175b.yaml", "--dry-run", "--ranks", ranks)
