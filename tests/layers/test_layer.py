"""Blocks of a layer, modules of a stack, and recomputation of layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megaptm.families.reformer.attention import HashedAttend
from megaptm.layers.attention import Attend
from megaptm.layers.feedforward import FeedForward, gelu_tanh
from megaptm.layers.feedforward_costs import GatedCosts
from megaptm.layers.layer import Layer
from megaptm.layers.norm import Norm
from megaptm.layers.split import Dropout
from megaptm.layers.stack import Stack
from megaptm.models.model import Model
from megaptm.spec import Block, FFNSpec, NormSpec, Size, change
from tests.models.tiny import FAMILIES, mean_losses, tiny_batch, tiny_model, tiny_spec


def is_reversible(family: str) -> bool:
    """Whether the family always recomputes its layers in a way of its own (tests/families/test_reformer.py)."""
    return any(block.residual.streams > 1 for block in tiny_spec(family).family.stacks.values())


SIZE = Size(layers=3, width=16, heads=2, ffn=32)


def filled(module: nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    norm, x = Norm(16, NormSpec(kind="rms", eps=1e-6)), torch.randn(5, 16)
    filled(norm)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected)
    assert norm.bias is None


@pytest.mark.parametrize("position", ["pre", "post"])
def test_norm_positions(position: str) -> None:
    layer, x = Layer(Block(norm=NormSpec(position=position)), SIZE, dropout=0.0), torch.randn(4, 2, 16)
    filled(layer)
    if position == "pre":
        y = x + layer.attention(layer.attention_norm(x), None)
        expected = y + layer.ffn(layer.ffn_norm(y))
    else:
        y = layer.attention_norm(x + layer.attention(x, None))
        expected = layer.ffn_norm(y + layer.ffn(y))
    assert layer(x, None).equal(expected)


@pytest.mark.parametrize(("kind", "gate"), [("swiglu", F.silu), ("geglu", gelu_tanh)])
def test_gate_and_value_rows_alternate(kind: str, gate) -> None:
    ffn, x = (
        FeedForward(GatedCosts(Block(ffn=FFNSpec(activation=kind, bias=False)), SIZE, SIZE.width), dropout=0.0),
        torch.randn(4, 2, 16),
    )
    filled(ffn)
    gates, values = ffn.up.weight[0::2], ffn.up.weight[1::2]
    expected = (gate(x @ gates.t()) * (x @ values.t())) @ ffn.down.weight.t()
    torch.testing.assert_close(ffn(x), expected)


def test_only_pre_norm_stacks_end_with_a_norm() -> None:
    def keys(norm: str, layers: range) -> list[str]:
        return list(Stack(Block(norm=NormSpec(position=norm), position="t5-bias-causal"), SIZE, layers, dropout=0.0))

    assert keys("pre", range(1, 3)) == ["bias_table", "1", "2", "final"]
    assert keys("pre", range(2)) == ["bias_table", "0", "1"]
    assert keys("post", range(1, 3)) == ["bias_table", "1", "2"]


@pytest.mark.parametrize("family", [name for name in FAMILIES if not is_reversible(name)])
def test_recomputation_gives_the_same_gradients(family: str) -> None:
    model, batch = tiny_model(family, dropout=0.1).train(), tiny_batch(family)

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        return list(torch.autograd.grad(mean_losses(model(batch).losses), list(model.parameters())))

    expected = gradients()
    runs = []

    def again(layer: Layer, *tensors: Tensor | None) -> Tensor:
        runs.append(layer)
        return checkpoint(layer, *tensors, use_reentrant=False)

    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    for stack in stacks:
        for number in stack.layer_numbers:
            stack[str(number)].run = again
    recomputed = gradients()
    assert len(runs) == sum(
        len(stack.layer_numbers) + getattr(stack, "decodes", False) for stack in stacks
    )  # a mask decoder runs twice
    assert all(a.equal(b) for a, b in zip(expected, recomputed, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_uses_the_stream_of_its_region(family: str) -> None:
    """A module with a replaced random stream uses no other, which is how ranks get equal or different masks."""
    model, batch = tiny_model(family, dropout=0.1).train(), tiny_batch(family)
    regions: list[str] = []

    class Recorded:
        def __init__(self, region: str) -> None:
            self.region = region

        def __enter__(self) -> None:
            self.outside = torch.get_rng_state()
            torch.manual_seed(len(regions))
            regions.append(self.region)

        def __exit__(self, *exc: object) -> None:
            torch.set_rng_state(self.outside)

    for module in model.modules():
        if isinstance(module, Dropout):
            module.rng = lambda region=module.masks: Recorded(region)
    before = torch.get_rng_state()
    model(batch)
    assert torch.get_rng_state().equal(before)
    blocks = model.spec.family.stacks.values()
    heads = ["heads"] if any(block.attentions[0].dropout or block.ffn.dropout for block in blocks) else []
    tables = ["replicated"] if any(record.scores_distances for block in blocks for record in block.attentions) else []
    assert set(regions) == {"residual", *heads, *tables}


@pytest.mark.parametrize(("option", "rate"), [(True, 0.1), (False, 0.0), (0.3, 0.3), (0.0, 0.0)])
@pytest.mark.parametrize("family", ["gpt2", "t5", "deberta", "reformer", "transformer-xl", "bigbird"])
def test_attention_dropout_option(family: str, option: bool | float, rate: float) -> None:
    spec = replace(tiny_spec(family), dropout=0.1)
    stacks = {name: change(block, attention={"dropout": option}) for name, block in spec.family.stacks.items()}
    model = Model(replace(spec, family=change(spec.family, stacks=stacks)))
    attending = {name for name, module in model.named_modules() if isinstance(module, Attend | HashedAttend)}
    rates = {name: module.rate for name, module in model.named_modules() if isinstance(module, Dropout)}
    assert {value for name, value in rates.items() if name.removesuffix(".dropout") in attending} == {rate}
    other_rates = {name: value for name, value in rates.items() if name.removesuffix(".dropout") not in attending}
    assert {value for name, value in other_rates.items() if "ffn" not in name and "final" not in name} == {0.1}
