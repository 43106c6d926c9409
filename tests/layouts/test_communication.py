"""Settings of `communication` do not change losses and norms, also with a batch ramp."""

import pytest

from megaptm.config import CommunicationConfig, Layout
from tests.layouts.cases import train_steps
from tests.ranks import run_ranks

# Samples of each step: a data rank has 2, 4, 2 and 4 micro-batches of one sample.
RAMP = (4, 8, 4, 8)

DP2 = {"data": 2, "microbatch": 1}
PP2, PP4 = {"pipeline": 2, "microbatch": 1}, {"pipeline": 4, "microbatch": 1}
DATA = {
    "DP2": Layout(**DP2),
    "DP2 distributed optimizer": Layout(**DP2, distributed_optimizer=True),
    "TP2xDP2": Layout(**DP2, tensor=2),
    "PP2xDP2 distributed optimizer": Layout(**DP2, pipeline=2, distributed_optimizer=True),
    "PP2 interleavedxDP2": Layout(**DP2, pipeline=2, virtual=2),
    "PP2 interleavedxDP2 distributed optimizer": Layout(**DP2, pipeline=2, virtual=2, distributed_optimizer=True),
}
STAGES = {
    "PP2": Layout(**PP2),
    "PP4": Layout(**PP4),
    "PP2 interleaved": Layout(**PP2, virtual=2),
    "PP2 four chunks": Layout(**PP2, virtual=4),
    "PP4 interleaved": Layout(**PP4, virtual=2),
}
DRILLS = ("DP2 distributed optimizer", "TP2xDP2", "PP2 interleavedxDP2", "PP4", "PP2 interleaved")
"""Layouts that others contain, with more axes or chunks. Tensor ranks have no messages of these settings."""
INTERLEAVED = ("PP2 interleaved", "PP2 four chunks", "PP4 interleaved")
CASES = [
    *(("overlap_grad_reduce", value, layout) for value in (False, True) for layout in DATA),
    *(("batch_p2p_comm", False, layout) for layout in STAGES),
    # It is rejected with two stages and several chunks: `tests/config/test_check.py`.
    *(("batch_p2p_comm", True, layout) for layout in ("PP2", "PP4", "PP4 interleaved")),
    *(("overlap_p2p_comm", True, layout) for layout in INTERLEAVED),
]


def train(layout, communication, family="gpt2"):
    arguments = (family, layout, len(RAMP), "fp32", communication, RAMP, 8)
    return run_ranks(layout.processes, train_steps, *arguments)


@pytest.fixture(scope="module")
def alone():
    return train(Layout(microbatch=1), CommunicationConfig())[0]


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [pytest.param(*case, marks=pytest.mark.drill if case[2] in DRILLS else []) for case in CASES],
)
def test_setting_changes_no_result(alone, setting, value, name):
    for result in train({**DATA, **STAGES}[name], CommunicationConfig(**{setting: value})):
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert result["norms"] == pytest.approx(alone["norms"], rel=1e-5)
        assert result["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-5)


@pytest.mark.parametrize("setting", ["overlap_p2p_comm", "batch_p2p_comm"])
def test_setting_changes_no_result_of_a_loss_inside_the_pipeline(setting):
    """ELECTRA's generator has a loss, and sends the sampled tokens with the hidden states."""
    [alone] = train(Layout(microbatch=1), CommunicationConfig(), "electra")
    name = "PP2 interleaved" if setting == "overlap_p2p_comm" else "PP2"
    for result in train(STAGES[name], CommunicationConfig(**{setting: True}), "electra"):
        for part in ("losses", "norms", "evaluation"):
            assert result[part] == pytest.approx(alone[part], rel=1e-5)


def test_every_setting_has_cases():
    tried = {(setting, value) for setting, value, _ in CASES}
    default = CommunicationConfig()
    for setting in CommunicationConfig.model_fields:
        # Cases of other settings have the default of this one.
        assert (setting, not getattr(default, setting)) in tried, setting
        assert getattr(default, setting) in (True, False)
