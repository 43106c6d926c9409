"""Attention kernels of a config, and rejection of unsuitable ones before a model is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.config import load_config, resolve_model
from megaptm.errors import UserError
from megaptm.layers.kernel_choice import attention_works
from megaptm.plan.kernels import attention_kernels
from megaptm.plan.workload import make_workload

CONFIGS = Path(__file__).parents[2] / "configs"


def kernels(name: str, *words: str, device: str = "cpu") -> dict[str, str]:
    # In bfloat16 the kernel depends on the CPU.
    config = load_config(CONFIGS / f"{name}.yaml", ["train.precision=fp32", *words] if device == "cpu" else [*words])
    return {attention: choice.kernel for attention, choice in attention_kernels(config, device)}


def test_kernel_of_each_kind_of_attention() -> None:
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
    ("name", "kernel", "device", "reason"),
    [
        ("gpt2/tiny", "flex", "cpu", "it trains on GPUs only"),
        ("t5/small", "tiles", "cpu", "it does not support terms added to attention scores"),
        ("reformer/enwik8", "tiles", "cpu", "it does not support pairs defined by hashes"),
        ("bart/base", "tiles", "cpu", "it does not support keys from another stack"),
    ],
)
def test_unsuitable_kernel_is_rejected(name: str, kernel: str, device: str, reason: str) -> None:
    with pytest.raises(UserError, match=rf"^train\.attention_kernel \({kernel}\) cannot compute the .*: {reason}"):
        kernels(name, f"train.attention_kernel={kernel}", device=device)


def test_attention_work_of_a_config() -> None:
    """Documents, an attention order, and dropout."""
    config = load_config(CONFIGS / "unilm/base.yaml")
    batch = config.batch_spec
    [work] = attention_works(resolve_model(config), batch, "bf16")
    assert work.documents
    assert work.ordered
    assert not work.scored
    assert (work.queries, work.key_width, work.precision) == (config.data.sequence, 64, "bf16")
    assert work.dropout == 0.1


def test_documents_need_no_mask_in_bf16() -> None:
    """On a GPU; float32, biased scores and image regions after a padded text do."""
    assert {*kernels("gpt2/small", "train.precision=bf16", device="cuda").values()} == {"varlen"}
    assert {*kernels("gpt2/small", "train.precision=fp32", device="cuda").values()} == {"fused"}
    assert kernels("t5/small", "train.precision=bf16", device="cuda") == {
        "dot attention of 6 layers of the encoder": "fused",
        "dot attention of 6 layers of the decoder": "fused",
        "cross attention of 6 layers of the decoder": "varlen",
    }
    assert {*kernels("uniter/base", "train.precision=bf16", device="cuda").values()} == {"fused"}


@pytest.mark.parametrize(
    ("name", "words", "has_mask"),
    [
        ("gpt2/small", ("train.precision=bf16",), False),
        ("gpt2/small", ("train.precision=fp32",), True),
        ("gpt2/small", ("train.precision=bf16", "train.attention_kernel=fused"), True),
        ("unilm/base", ("train.precision=bf16",), True),
    ],
)
def test_plan_counts_a_mask_where_the_kernel_reads_one(name: str, words: tuple[str, ...], has_mask: bool) -> None:
    assert make_workload(load_config(CONFIGS / f"{name}.yaml", [*words])).has_mask == has_mask
