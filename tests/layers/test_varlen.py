"""Attention by offsets of documents equals the dense mask, with gradients; offsets of documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.layers.kernels import kernel_window
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import SlidingWindow
from megaptm.layers.varlen import MAX_DOCUMENTS, attend_by_document, cross_offsets, document_offsets
from megaptm.models.model import Model
from megaptm.parallel.document_offsets import DocumentOffsetsHook
from tests.layers.flash_on_cpu import Flash, flash_on_cpu
from tests.layouts.cases import batch, tiny

IDS = torch.tensor([[1, 1, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1], [0, 4, 4, 0, 0, 7, 7, 7]])
MEMORY_IDS = torch.tensor([[1, 2, 3, 3, 3], [1, 1, 1, 0, 0]])
SCALE = 0.3


def test_offsets_are_the_starts_of_documents_and_of_padding() -> None:
    offsets = document_offsets(IDS)
    assert offsets is not None
    assert offsets.tolist() == [0, 2, 5, 6, 8, 16, 17, 19, 21, *[24] * 8]
    assert offsets.dtype == torch.int32


@pytest.mark.parametrize("ids", [[[1, 1, 2, 1]], [[3, 3, 0, 3]]])
def test_interrupted_documents_have_no_offsets(ids: list[list[int]]) -> None:
    assert document_offsets(torch.tensor(ids)) is None


def test_more_documents_than_a_grid_can_count_have_no_offsets() -> None:
    ids = torch.arange(1, MAX_DOCUMENTS + 2)[None]
    assert document_offsets(ids) is cross_offsets(ids, ids) is None
    assert document_offsets(ids[:, 1:]) is not None
    assert cross_offsets(ids[:, :-1], ids[:, :-1]) is not None


def test_documents_of_equal_ids_in_two_sequences_are_two() -> None:
    offsets = document_offsets(torch.tensor([[1, 1], [1, 1]]))
    assert offsets is not None
    assert offsets.tolist() == [0, 2, 4]


def test_number_of_offsets_is_a_power_of_two_and_one() -> None:
    """Compiled code sees few shapes."""
    for documents, size in {1: 2, 2: 3, 3: 5, 5: 9, 8: 9}.items():
        offsets = document_offsets(torch.arange(1, documents + 1)[None])
        assert offsets is not None
        assert len(offsets) == size


def test_cross_offsets_pair_documents_and_padding() -> None:
    offsets = cross_offsets(IDS[:2], MEMORY_IDS)
    assert offsets is not None
    queries, keys = offsets.tolist()
    # Padding of the first sequence has no keys; that of the second memory has no queries.
    assert queries == [0, 2, 5, 6, 8, 16, 16, 16, 16]
    assert keys == [0, 1, 2, 5, 5, 8, 10, 10, 10]


@pytest.mark.parametrize("ids", [[[2, 2, 1]], [[0, 1, 1]], [[1, 99, 99]]])
def test_cross_offsets_need_ascending_documents(ids: list[list[int]]) -> None:
    assert cross_offsets(torch.tensor(ids), torch.tensor([[1, 1, 1, 2]])) is None


def random_qkv(queries: int, keys: int, key_heads: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (queries, 4), (keys, key_heads), (keys, key_heads)
    # Slices of one projection, as in a layer.
    return [
        torch.randn(length, 2, heads, 3, 8, generator=generator, dtype=torch.float64)[:, :, :, 1].requires_grad_()
        for length, heads in shapes
    ]


def dense_attention(x: list[Tensor], mask: Mask) -> Tensor:
    q, k, v = (side.permute(1, 2, 0, 3) for side in x)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.dense, scale=SCALE, enable_gqa=True)
    return mixed.permute(2, 0, 1, 3)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["causal", "full", "cross", "causal window", "window"])
def test_attention_by_offsets_equals_the_dense_mask(kind: str, key_heads: int) -> None:
    ids, memory = IDS[:2], MEMORY_IDS if kind == "cross" else IDS[:2]
    offsets = cross_offsets(ids, memory) if kind == "cross" else document_offsets(ids)
    assert offsets is not None
    x, is_causal = random_qkv(ids.shape[1], memory.shape[1], key_heads), kind.startswith("causal")
    pattern = SlidingWindow(2, 1) if kind.endswith("window") else None
    mask = Mask((ids.shape[1], memory.shape[1]), ids.device, (ids, memory), causal=is_causal, pattern=pattern)
    is_read = (ids.t() > 0)[:, :, None, None]
    back = torch.randn(ids.shape[1], 2, 4, 8, dtype=torch.float64) * is_read
    with flash_on_cpu():
        window = kernel_window(pattern, is_causal)
        mixed = attend_by_document(*x, offsets, causal=is_causal, scale=SCALE, dropout=0.0, window=window)
        gradients = torch.autograd.grad(mixed, x, back)
    expected = dense_attention(x, mask)
    assert ((mixed - expected) * is_read).abs().max() < 1e-12
    for gradient, expected_gradient in zip(gradients, torch.autograd.grad(expected, x, back), strict=True):
        assert (gradient - expected_gradient).abs().max() < 1e-12
    assert gradients[1].transpose(0, 1)[memory == 0].abs().sum() == 0


def test_dropout_of_the_backward_pass_is_that_of_the_forward_pass() -> None:
    offsets, x = document_offsets(IDS[:2]), random_qkv(8, 8, 2)
    assert offsets is not None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend_by_document(q, k, v, offsets, causal=True, scale=SCALE, dropout=0.4)

    with flash_on_cpu():
        assert torch.autograd.gradcheck(attend, x, check_undefined_grad=False)
        assert not torch.equal(attend(*x), attend_by_document(*x, offsets, causal=True, scale=SCALE, dropout=0.0))


def random_model(family: str) -> Model:
    model = Model(tiny(family)).double()
    torch.manual_seed(0)
    for weight in model.parameters():
        nn.init.normal_(weight, 0, 0.3)
    return model


def losses_and_gradients(model: Model, fields: dict[str, Tensor]) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    loss = torch.stack([total / count.clamp(min=1) for total, count in model({**fields}).losses.values()]).sum()
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for weight in model.parameters() if weight.grad is not None)]


CALLS = {
    **dict.fromkeys(("gpt1", "gpt2", "palm", "bert", "roberta", "albert", "electra", "ernie", "distilbert"), 4),
    **dict.fromkeys(("modernbert", "ettin-decoder", "llama", "qwen3", "olmo2", "mistral", "gemma3"), 4),
    "gpt3-banded": 4,
    "transformer": 6,
    "bart": 6,
    "t5": 2,
    "led": 4,
    **dict.fromkeys(("deberta-v3", "unilm", "longformer", "bigbird", "reformer", "gemma2", "t5gemma"), 0),
}
"""Family -> attentions of a pass that take offsets. Others add terms to scores or cap them, or have an order, global
tokens, or a pattern that is no window."""


def run_by_offsets(family: str, fields: dict[str, Tensor]) -> tuple[Flash, list[Tensor], list[Tensor]]:
    """Return the calls of the kernel, and losses and gradients with dense masks and with offsets."""
    model = random_model(family)
    expected = losses_and_gradients(model, fields)
    with flash_on_cpu() as calls:
        prepared = DocumentOffsetsHook(model.spec.family).prepare_batch(fields)
        return calls, expected, losses_and_gradients(model, prepared)


@pytest.mark.parametrize("family", CALLS)
def test_packed_batches_give_the_same_loss_and_gradients(family: str) -> None:
    """Several documents and padding, also where only one of encoder and decoder is padded."""
    calls, expected, by_offsets = run_by_offsets(family, batch(family, 0))
    assert len(calls.forward) == calls.backward == CALLS[family]
    for dense, offsets in zip(expected, by_offsets, strict=True):
        assert (dense - offsets).abs().max() <= 1e-11 * max(1.0, float(dense.abs().max()))


def test_interrupted_documents_take_the_dense_mask() -> None:
    fields = batch("bert", 0)
    fields["document_ids"][:, 1] = 2
    calls, expected, by_offsets = run_by_offsets("bert", fields)
    assert calls.forward == []
    assert all(torch.equal(*pair) for pair in zip(expected, by_offsets, strict=True))


def test_kernel_fused_takes_the_dense_mask() -> None:
    model: Any = random_model("gpt2")
    model.decoder.kernel = "fused"
    with flash_on_cpu() as calls:
        losses_and_gradients(model, DocumentOffsetsHook(model.spec.family).prepare_batch(batch("gpt2", 0)))
    assert calls.forward == []


def test_cpus_get_no_offsets() -> None:
    fields = batch("gpt2", 0)
    assert DocumentOffsetsHook(tiny("gpt2").family).prepare_batch(fields) is fields
