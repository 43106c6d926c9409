"""Topic `attention` of `megaptm check`."""

from __future__ import annotations

from pathlib import Path

from megaptm.check.attention import check_attention
from megaptm.check.finding import CheckInput, run_checks
from megaptm.config import load_config
from megaptm.plan.machine import load_machine

CONFIGS = Path(__file__).parents[2] / "configs"


def attention_findings(name: str, *words: str) -> list[tuple[str, str]]:
    case = CheckInput(config=load_config(CONFIGS / f"{name}.yaml", [*words]), machine=load_machine("h100-80g"))
    return [(finding.state, finding.message) for finding in run_checks([("attention", check_attention)], case)]


def test_kernel_is_reported_with_reason() -> None:
    [(state, message)] = attention_findings("bigbird/base")
    assert state == "ok"
    assert message.startswith(
        "blocks attention of 12 layers of the encoder, on H100 80 GB: tiles, 0.15 of all query-key pairs"
    )
    assert "not varlen: it supports only window patterns" in message
    assert "not flash-attn: " in message
    assert "not flex: " in message


def test_windows_are_computed_by_documents() -> None:
    [(_, message)] = attention_findings("longformer/base")
    assert message == (
        "window attention of 12 layers of the encoder, on H100 80 GB: varlen, 0.15 of all query-key pairs are computed."
    )


def test_unusable_kernel_is_a_fault() -> None:
    [(state, message)] = attention_findings("t5/small", "train.attention_kernel=tiles")
    assert state == "fault"
    assert message.startswith(
        "train.attention_kernel (tiles) cannot compute the dot attention of 6 layers of the encoder"
    )
