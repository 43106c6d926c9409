"""`megaptm check` tells which kernels compute attention, and finds the one that cannot."""

from __future__ import annotations

from pathlib import Path

from megaptm.check.attention import attention
from megaptm.check.finding import Case, look
from megaptm.config import load
from megaptm.plan.machine import load_machine

CONFIGS = Path(__file__).parents[2] / "configs"


def found(name: str, *words: str) -> list[tuple[str, str]]:
    case = Case(config=load(CONFIGS / f"{name}.yaml", [*words]), machine=load_machine("h100-80g"))
    return [(one.state, one.says) for one in look([("attention", attention)], case)]


def test_a_kernel_is_told_with_its_reason() -> None:
    [(state, says)] = found("longformer/base")
    assert state == "good"
    assert says.startswith("window attention of 12 layers of the encoder, on H100 80 GB: tiles, 0.15 of a row's pairs")
    assert "not flash-attn: " in says
    assert "not flex: " in says


def test_one_that_cannot_be_is_a_fault() -> None:
    [(state, says)] = found("t5/small", "train.attention_kernel=tiles")
    assert state == "fault"
    assert says.startswith("train.attention_kernel (tiles) cannot compute the dot attention of 6 layers of the encoder")
