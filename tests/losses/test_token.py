"""The fused projection and loss is cross-entropy, in value and in gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from megaptm.batch import IGNORED
from megaptm.losses import token
from megaptm.losses.token import TokenLoss

VOCABULARY, ROWS = 29, 32


@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.3)])
@pytest.mark.parametrize("chunk", [1024, 7])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("drops_unasked", [True, False], ids=["as on a CPU", "as on a GPU"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_it_equals_plain_cross_entropy(
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    with_bias: bool,
    drops_unasked: bool,
    dtype: torch.dtype,
    tolerance: float,
    z_loss: float,
    smoothing: float,
) -> None:
    monkeypatch.setattr(token, "drops_unasked", lambda hidden: drops_unasked)
    monkeypatch.setattr(token, "ROWS_PROJECTED", chunk)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(20, 8), torch.randn(ROWS, 8), torch.randn(ROWS)
    inputs = [
        tensor.to(dtype).requires_grad_() for tensor in ([hidden, weight, bias] if with_bias else [hidden, weight])
    ]
    labels = torch.randint(0, VOCABULARY, (20,))
    labels[[3, 8, 19]] = IGNORED

    loss = TokenLoss(VOCABULARY, z_loss=z_loss, label_smoothing=smoothing)(
        inputs[0], inputs[1], inputs[2] if with_bias else None, labels
    )
    gradients = torch.autograd.grad(loss / 17, inputs)

    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    logits = F.linear(*exact)[:, :VOCABULARY]
    expected = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing)
    expected = expected + z_loss * logits.logsumexp(-1)[labels != IGNORED].square().sum()
    expected_gradients = torch.autograd.grad(expected / 17, exact)

    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=0)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("chunk", [1024, 7])
def test_where_products_of_float32_are_faster_bfloat16_is_rounded_at_the_end_only(monkeypatch, chunk):
    monkeypatch.setattr(token, "widens", lambda x: x.dtype == torch.bfloat16)
    monkeypatch.setattr(token, "ROWS_PROJECTED", chunk)
    torch.manual_seed(0)
    inputs = [torch.randn(*shape).bfloat16().requires_grad_() for shape in ((20, 8), (ROWS, 8), (ROWS,))]
    labels = torch.randint(0, VOCABULARY, (20,))
    labels[[3, 8, 19]] = IGNORED
    loss = TokenLoss(VOCABULARY)(*inputs, labels)
    gradients = torch.autograd.grad(loss, inputs)

    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = F.cross_entropy(F.linear(*exact)[:, :VOCABULARY], labels, reduction="sum", ignore_index=IGNORED)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, exact), strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), theirs, rtol=2.0**-8, atol=1e-6)


def test_rows_above_the_vocabulary_get_no_gradient_and_no_probability() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(5, 8)
    weight = torch.randn(ROWS, 8)
    weight[VOCABULARY:] = 100.0
    weight.requires_grad_()
    loss = TokenLoss(VOCABULARY)(hidden, weight, None, torch.arange(5))
    loss.backward()
    assert weight.grad is not None
    assert weight.grad[VOCABULARY:].abs().max() == 0
    assert TokenLoss(VOCABULARY).logits(hidden, weight, None).shape == (5, VOCABULARY)


def test_nothing_asked_costs_nothing() -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(ROWS, 8, requires_grad=True)
    loss = TokenLoss(VOCABULARY)(hidden, weight, None, torch.full((4,), IGNORED))
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert hidden.grad.abs().max() == 0
    assert weight.grad is not None
    assert weight.grad.abs().max() == 0


def test_what_keeps_the_normalizer_near_one_is_no_part_of_a_measurement() -> None:
    hidden, weight, labels = torch.randn(9, 8), torch.randn(ROWS, 8), torch.arange(9)
    trained = TokenLoss(VOCABULARY, z_loss=0.1, label_smoothing=0.1)
    plain = TokenLoss(VOCABULARY)(hidden, weight, None, labels)
    assert trained(hidden, weight, None, labels) > plain + 0.1
    assert trained.eval()(hidden, weight, None, labels) == plain


def test_without_gradients_the_value_is_the_same() -> None:
    torch.manual_seed(0)
    hidden, weight, labels = torch.randn(9, 8), torch.randn(ROWS, 8, requires_grad=True), torch.arange(9)
    loss = TokenLoss(VOCABULARY)(hidden, weight, None, labels)
    with torch.no_grad():
        assert TokenLoss(VOCABULARY)(hidden, weight, None, labels) == loss
