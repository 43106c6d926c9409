"""Which kernels compute the attention of a config, and what is refused before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.bricks.kernels import works_of
from megaptm.config import load, resolve_model
from megaptm.errors import UserError
from megaptm.plan.kernels import attention_kernels

CONFIGS = Path(__file__).parents[2] / "configs"


def kernels(name: str, *words: str, device: str = "cpu") -> dict[str, str]:
    # Of bfloat16, CPUs take one kernel or another.
    config = load(CONFIGS / f"{name}.yaml", ["train.precision=fp32", *words] if device == "cpu" else [*words])
    return {attention: choice.kernel for attention, choice in attention_kernels(config, device)}


def test_each_kind_of_attention_of_a_model_has_one() -> None:
    assert kernels("gpt3/xl") == {"dot attention of 24 layers of the decoder": "fused"}
    assert kernels("longformer/base") == {"window attention of 12 layers of the encoder": "tiles"}
    assert kernels("reformer/enwik8") == {
        "local attention of 9 layers of the decoder": "tiles",
        "lsh attention of 3 layers of the decoder": "chunks",
    }
    assert kernels("t5/small") == {
        "dot attention of 6 layers of the encoder": "fused",
        "dot attention of 6 layers of the decoder": "fused",
        "cross attention of 6 layers of the decoder": "fused",
    }
    assert kernels("elmo/small") == kernels("word2vec/small") == {}


@pytest.mark.parametrize(
    ("name", "kernel", "device", "why"),
    [
        ("gpt2/tiny", "flex", "cpu", "it trains on GPUs alone"),
        ("t5/small", "tiles", "cpu", "something is added to its scores"),
        ("reformer/enwik8", "tiles", "cpu", "its places are sorted by hashes"),
        ("bart/base", "tiles", "cpu", "its keys are another stream's"),
    ],
)
def test_a_kernel_that_cannot_compute_all_of_it_is_refused(name: str, kernel: str, device: str, why: str) -> None:
    with pytest.raises(UserError, match=rf"^train\.attention_kernel \({kernel}\) cannot compute the .*: {why}"):
        kernels(name, f"train.attention_kernel={kernel}", device=device)


def test_what_a_config_asks_is_what_its_batches_hold() -> None:
    """Documents, an order, dropout, and who sees whom."""
    config = load(CONFIGS / "unilm/base.yaml")
    batch = config.batch_spec
    [work] = works_of(resolve_model(config), batch, "bf16")
    assert work.documents
    assert work.ordered
    assert not work.scored
    assert (work.queries, work.key_width, work.precision) == (config.data.sequence, 64, "bf16")
    assert work.dropout == 0.1
