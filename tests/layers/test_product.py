"""Maps of bfloat16 by products of float32."""

import pytest
import torch
import torch.nn.functional as F

from megaptm.layers import product
from megaptm.layers.split import Linear


@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_those_of_a_float64_map_rounded_once(monkeypatch, bias):
    monkeypatch.setattr(product, "prefers_float32", lambda: True)
    torch.manual_seed(0)
    linear = Linear(48, 40, bias=bias).to(torch.bfloat16)
    for parameter in linear.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 32, 48).to(torch.bfloat16).requires_grad_()
    d_out = torch.randn(5, 32, 40).to(torch.bfloat16)
    out = linear(x)
    assert out.dtype == torch.bfloat16
    assert "CpuLinear" in type(out.grad_fn).__name__
    out.backward(d_out)

    wide = [one.detach().double().requires_grad_() for one in (x, *linear.parameters())]
    expected = F.linear(*wide)
    expected.backward(d_out.double())
    parameters = [x, *linear.parameters()]
    pairs = [(out, expected), *((one.grad, exact.grad) for one, exact in zip(parameters, wide, strict=True))]
    for found, exact in pairs:
        # Half of a unit in the last of its 8 places, and what float32 forgets of sums that cancel.
        torch.testing.assert_close(found.double(), exact, rtol=2.0**-8, atol=1e-4)


def test_few_rows_and_other_types_are_left_alone(monkeypatch):
    monkeypatch.setattr(product, "prefers_float32", lambda: True)
    many = torch.ones(4, 16, 8)
    assert product.widens(many.bfloat16())
    assert not product.widens(many)
    assert not product.widens(many[:1].bfloat16())
