"""Maps of bfloat16 by products of float32, and of float32 by oneDNN's."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

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


@pytest.fixture
def by_onednn(monkeypatch):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(product, "prefers_onednn", lambda: True)
    monkeypatch.setattr(product, "LEAST_MULTIPLIED", 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_products_of_onednn_are_those_of_a_float64_map(by_onednn, bias, transposed):
    torch.manual_seed(0)
    x, d_out = torch.randn(5, 33, 48), torch.randn(5, 33, 40)
    weight = torch.randn(48, 40).t() if transposed else torch.randn(40, 48)
    inputs = [x, weight, torch.randn(40)] if bias else [x, weight]
    ours, exact = (
        [one.detach().to(dtype).requires_grad_() for one in inputs] for dtype in (torch.float32, torch.float64)
    )
    with torch.profiler.profile() as profiled:
        out = product.linear(*ours)
        found = torch.autograd.grad(out, ours, d_out)
    assert sum("_linear_pointwise" in one.name for one in profiled.events()) == 3  # the map, and of both its gradients
    expected = F.linear(*exact)
    pairs = [(out, expected), *zip(found, torch.autograd.grad(expected, exact, d_out.double()), strict=True)]
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_a_sum_of_products_is_added_to(by_onednn):
    torch.manual_seed(0)
    total, a, b = torch.randn(20, 12), torch.randn(9, 20).t(), torch.randn(9, 12)
    expected = total.double() + a.double() @ b.double()
    torch.testing.assert_close(product.add_matmul(total, a, b).double(), expected, rtol=1e-5, atol=1e-5)


def test_operations_are_counted_all_the_same(by_onednn):
    x, weight = torch.randn(8, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True)
    counted = []
    for multiply in (product.linear, F.linear):
        with FlopCounterMode(display=False) as counter:
            multiply(x, weight).sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] == 3 * 2 * 8 * 16 * 4


def test_a_bias_whose_numbers_lie_apart_is_added_as_it_is(by_onednn):
    x, weight, bias = torch.randn(5, 48), torch.randn(40, 48), torch.randn(80)[::2]
    torch.testing.assert_close(product.linear(x, weight, bias), F.linear(x, weight, bias))


def test_a_single_row_of_no_batch_has_gradients(by_onednn):
    x, weight = torch.randn(48, requires_grad=True), torch.randn(40, 48, requires_grad=True)
    ours, theirs = (torch.autograd.grad(of(x, weight).square().sum(), (x, weight)) for of in (product.linear, F.linear))
    torch.testing.assert_close(ours, theirs)


def test_the_gradient_of_a_gradient_is_refused_and_not_zero(by_onednn):
    x, weight = torch.randn(5, 48, requires_grad=True), torch.randn(40, 48, requires_grad=True)
    (gradient,) = torch.autograd.grad(product.linear(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()
