"""Weight gradients that are added to the engine's buffer."""

import pytest
import torch
import torch.nn.functional as F

from megaptm.layers import accumulate
from megaptm.layers.split import Linear


class GradientSum:
    """Gradient sum of an engine."""

    def __init__(self, weight):
        self.total = torch.ones(weight.shape)

    def mark_added(self):
        return None


def marked(bias):
    torch.manual_seed(0)
    linear = Linear(6, 5, bias=bias)
    for parameter in linear.parameters():
        torch.nn.init.normal_(parameter)
    linear.weight.adds_products, linear.weight.gradient_sum = True, GradientSum(linear.weight)
    return linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_gradients_equal_autograd(bias, strided):
    linear = marked(bias)
    x = torch.randn(4, 3, 6).transpose(0, 1) if strided else torch.randn(3, 4, 6)
    x = x.detach().requires_grad_()
    d_output = torch.randn(4, 3, 5).transpose(0, 1) if strided else torch.randn(3, 4, 5)
    inputs = [x, *linear.parameters()]
    expected = torch.autograd.grad(F.linear(*inputs), inputs, d_output)
    linear(x).backward(d_output)
    assert linear.weight.grad is None
    torch.testing.assert_close(linear.weight.gradient_sum.total - 1, expected[1])
    torch.testing.assert_close(x.grad, expected[0])
    if bias:
        torch.testing.assert_close(linear.bias.grad, expected[2])


def test_input_without_gradient_gets_none():
    linear = marked(bias=False)
    linear(torch.ones(2, 6)).sum().backward()
    assert linear.weight.gradient_sum.total.eq(3).all()


@pytest.mark.parametrize("reason", ["evaluation", "module"])
def test_autograd_computes_other_gradients(monkeypatch, reason):
    linear = marked(bias=False)
    if reason == "module":
        linear.weight.adds_products = False  # as the engine does
    monkeypatch.setattr(accumulate, "_Linear", None)
    with torch.set_grad_enabled(reason != "evaluation"):
        output = linear(torch.ones(2, 6))
    assert output.requires_grad == (reason != "evaluation")


@pytest.mark.parametrize("bias", [False, True])
def test_compiled_code_adds_to_the_same_sums(bias):
    linears = [marked(bias) for _ in range(2)]
    for linear in linears:
        assert accumulate.allow_direct_sum(linear.weight, is_exclusive=True)
    compiled = torch.compile(lambda linear, x: F.gelu(linear(x)), backend="aot_eager", fullgraph=True)
    results = []
    for function, linear in zip((compiled, lambda linear, x: F.gelu(linear(x))), linears, strict=True):
        x = torch.linspace(-1, 1, 72).view(4, 3, 6).requires_grad_()
        function(linear, x).square().sum().backward()
        results.append([x.grad, linear.weight.gradient_sum.total, *([linear.bias.grad] if bias else [])])
    assert linears[0].weight.has_placeholder
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("version", [False, True], ids=["torch 2.9", "torch 2.10"])
def test_products_are_added_by_one_kernel_on_gpus(monkeypatch, version):
    """Shapes and formats alone: the meta device stands for a GPU."""
    monkeypatch.setattr(accumulate, "HAS_MIXED_SUM", version)
    calls = []
    monkeypatch.setattr(torch, "addmm", lambda *args, out_dtype, out: calls.append((out_dtype, out is args[0])))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: self.is_meta))
    total = torch.zeros(5, 6, device="meta")
    accumulate.add_product(
        total, *(torch.zeros(shape, dtype=torch.bfloat16, device="meta") for shape in ((5, 3), (3, 6)))
    )
    assert calls == ([(torch.float32, True)] if version else [])
