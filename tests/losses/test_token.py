"""Fused projection and cross-entropy, in value and gradient."""

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
@pytest.mark.parametrize("drops_unlabeled", [True, False], ids=["as on a CPU", "as on a GPU"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_token_loss_equals_cross_entropy(
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    with_bias: bool,
    drops_unlabeled: bool,
    dtype: torch.dtype,
    tolerance: float,
    z_loss: float,
    smoothing: float,
) -> None:
    monkeypatch.setattr(token, "drops_unlabeled", lambda hidden: drops_unlabeled)
    monkeypatch.setattr(token, "num_rows_projected", lambda *_: chunk)
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
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("chunk", [1024, 7])
def test_soft_cap_equals_cross_entropy(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(token, "num_rows_projected", lambda *_: chunk)
    torch.manual_seed(0)
    inputs = [(3 * torch.randn(rows, 8)).requires_grad_() for rows in (20, ROWS)]
    labels = torch.randint(0, VOCABULARY, (20,))
    labels[[3, 8]] = IGNORED
    module = TokenLoss(VOCABULARY, z_loss=0.1, cap=2.0)
    loss = module(*inputs, None, labels)
    logits = 2.0 * torch.tanh(F.linear(*inputs)[:, :VOCABULARY] / 2.0)
    torch.testing.assert_close(module.logits(*inputs, None), logits)
    expected = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
    expected = expected + 0.1 * logits.logsumexp(-1)[labels != IGNORED].square().sum()
    torch.testing.assert_close(loss, expected)
    for gradient, expected_gradient in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-5)


def test_vocabulary_padding_gets_no_gradient() -> None:
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


def test_loss_without_labels_is_zero() -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(ROWS, 8, requires_grad=True)
    loss = TokenLoss(VOCABULARY)(hidden, weight, None, torch.full((4,), IGNORED))
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert hidden.grad.abs().max() == 0
    assert weight.grad is not None
    assert weight.grad.abs().max() == 0


def test_z_loss_and_label_smoothing_apply_in_training_only() -> None:
    hidden, weight, labels = torch.randn(9, 8), torch.randn(ROWS, 8), torch.arange(9)
    trained = TokenLoss(VOCABULARY, z_loss=0.1, label_smoothing=0.1)
    plain = TokenLoss(VOCABULARY)(hidden, weight, None, labels)
    assert trained(hidden, weight, None, labels) > plain + 0.1
    assert trained.eval()(hidden, weight, None, labels) == plain


def test_token_loss_without_gradients_has_the_same_value() -> None:
    torch.manual_seed(0)
    hidden, weight, labels = torch.randn(9, 8), torch.randn(ROWS, 8, requires_grad=True), torch.arange(9)
    loss = TokenLoss(VOCABULARY)(hidden, weight, None, labels)
    with torch.no_grad():
        assert TokenLoss(VOCABULARY)(hidden, weight, None, labels) == loss
