"""Initial values: the published standard deviations; they depend only on the seed and the parameter name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT2
from megaptm.families.palm import PALM
from megaptm.families.roberta import ROBERTA
from megaptm.families.t5 import T5, T5_V1_1
from megaptm.models import initial
from megaptm.models.initial import init_weights, initial_value, initial_values
from megaptm.models.model import Model, even_chunks
from megaptm.spec import Family, ModelSpec, Size, change
from tests.models.tiny import FAMILIES, tiny_spec


def filled(family: Family, **size: int) -> tuple[ModelSpec, dict[str, Tensor]]:
    spec = ModelSpec(family=family, size=Size(layers=2, **size), vocabulary=300, context=64, dropout=0.0)
    model = Model(spec)
    init_weights(model, seed=1)
    return spec, {name: parameter.detach() for name, parameter in model.named_parameters()}


def std(tensor: Tensor) -> float:
    return float(tensor.std())


def test_gpt2_scales_residual_projections() -> None:
    _, weights = filled(GPT2, width=128, heads=4, ffn=512)
    residual = 0.02 / math.sqrt(2 * 2)
    assert std(weights["decoder.1.attention.output.weight"]) == pytest.approx(residual, rel=0.03)
    assert std(weights["decoder.0.ffn.down.weight"]) == pytest.approx(residual, rel=0.03)
    assert std(weights["decoder.0.attention.qkv.weight"]) == pytest.approx(0.02, rel=0.03)
    assert std(weights["embed.position.weight"]) == pytest.approx(0.02, rel=0.03)


def test_roberta_has_std_002() -> None:
    _, weights = filled(ROBERTA, width=128, heads=4, ffn=512)
    for name in ("encoder.0.attention.output.weight", "encoder.1.ffn.down.weight", "head.mlm.transform.weight"):
        assert std(weights[name]) == pytest.approx(0.02, rel=0.03), name
        assert weights[name].abs().max() > 0.06


def test_bert_truncates_at_two_standard_deviations() -> None:
    _, weights = filled(BERT, width=128, heads=4, ffn=512)
    _, normal = filled(ROBERTA, width=128, heads=4, ffn=512)
    # Variance of a normal truncated at a: 1 - 2 a p(a) / (P(a) - P(-a)), with a = 2.
    truncated_std = 0.02 * math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
    for name in ("encoder.0.attention.output.weight", "encoder.1.ffn.down.weight", "head.mlm.transform.weight"):
        assert std(weights[name]) == pytest.approx(truncated_std, rel=0.03), name
        assert weights[name].abs().max() <= 0.04
        inside = normal[name].abs() <= 0.04
        assert torch.equal(weights[name][inside], normal[name][inside])


def test_t5_follows_mesh_tensorflow() -> None:
    spec, weights = filled(T5, width=128, heads=4, ffn=512, head_width=64)
    queries, keys, values = weights["decoder.0.attention.qkv.weight"].view(4, 3, 64, 128).unbind(1)
    assert std(queries) == pytest.approx((128 * 64) ** -0.5, rel=0.03)
    assert std(keys) == pytest.approx(128**-0.5, rel=0.03)
    assert std(values) == pytest.approx(128**-0.5, rel=0.03)
    assert std(weights["decoder.0.cross.query.weight"]) == pytest.approx((128 * 64) ** -0.5, rel=0.03)
    assert std(weights["decoder.1.cross.output.weight"]) == pytest.approx((4 * 64) ** -0.5, rel=0.03)
    assert std(weights["encoder.1.ffn.down.weight"]) == pytest.approx(512**-0.5, rel=0.03)
    assert std(weights["embed.token.weight"][: spec.vocabulary]) == pytest.approx(1.0, rel=0.03)
    assert std(weights["encoder.bias_table.weight"]) == pytest.approx(128**-0.5, rel=0.2)


def test_untied_t5_head_scales_logits_to_1() -> None:
    spec, weights = filled(T5_V1_1, width=128, heads=4, ffn=512)
    assert std(weights["head.lm.table.weight"][: spec.vocabulary]) == pytest.approx(128**-0.5, rel=0.03)
    assert std(weights["embed.token.weight"][: spec.vocabulary]) == pytest.approx(1.0, rel=0.03)


def test_palm_scales_by_fan_in() -> None:
    spec, weights = filled(PALM, width=128, heads=4, ffn=512, head_width=64, kv_heads=1)
    assert std(weights["embed.token.weight"][: spec.vocabulary]) == pytest.approx(1.0, rel=0.03)
    for name, inputs in {"query": 128, "kv": 128, "output": 4 * 64}.items():
        assert std(weights[f"decoder.0.attention.{name}.weight"]) == pytest.approx(inputs**-0.5, rel=0.03), name
    assert std(weights["decoder.1.ffn.up.weight"]) == pytest.approx(128**-0.5, rel=0.03)
    assert std(weights["decoder.1.ffn.down.weight"]) == pytest.approx(512**-0.5, rel=0.03)


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_start_at_zero_and_norms_at_one(family: str) -> None:
    """Differences and padding of the vocabulary start at zero too, as do weights of norms to which 1 is added."""
    spec = tiny_spec(family)
    start = 0 if spec.family.last_block.norm.kind == "rms-unit-offset" else 1
    model = Model(spec)
    init_weights(model, seed=1)
    for name, parameter in model.named_parameters():
        if name.endswith((".bias", "_difference.weight")):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert parameter.eq(start).all(), name
        else:
            assert parameter[: spec.vocabulary].ne(0).all(), name
    assert not model.embed.token.weight[spec.vocabulary :].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_start_with_the_values_of_the_model(family: str) -> None:
    spec = tiny_spec(family)
    full_model = Model(spec)
    init_weights(full_model, seed=3)
    for part in even_chunks(spec, 2):
        model = Model(spec, part)
        init_weights(model, seed=3)
        for name, parameter in model.named_parameters():
            assert parameter.equal(full_model.get_parameter(name)), name


def test_initial_values_differ_by_seed_and_name() -> None:
    spec = tiny_spec("gpt2")
    names = ("decoder.0.ffn.up.weight", "decoder.1.ffn.up.weight")
    values = [initial_value(spec, name, (64, 32), seed) for seed in (0, 1) for name in names]
    assert all(not a.equal(b) for i, a in enumerate(values) for b in values[:i])


@pytest.mark.parametrize("max_bytes", [0, 2 << 30])
def test_values_sampled_by_threads_equal_each_sampled_alone(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 0 bytes, each waits for the one before; otherwise more parameters are sampled ahead than there are
    threads."""
    monkeypatch.setattr(initial, "MAX_SAMPLED_BYTES", max_bytes)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    spec = tiny_spec("bert")
    parameters = [(f"encoder.{layer}.ffn.up.weight", (64 + layer, 32)) for layer in range(20)]
    values = list(initial_values(spec, parameters, seed=5))
    expected = [initial_value(spec, name, shape, seed=5) for name, shape in parameters]
    assert [value.shape for value in values] == [shape for _, shape in parameters]
    assert all(map(torch.equal, values, expected))


def test_initial_values_raise_the_error_of_a_parameter() -> None:
    spec = tiny_spec("gpt2")
    unknown = replace(spec, family=change(spec.family, init={"rule": "gpt-2"}))
    with pytest.raises(UserError, match=r"init\.rule is 'gpt-2', which is unknown"):
        list(initial_values(unknown, [("decoder.0.ffn.up.weight", (4, 4))], seed=0))


def test_init_std_is_an_option() -> None:
    """It scales the same random numbers. Parameters with a rule of their own keep it."""
    for family, name in (("bert", "encoder.0.ffn.up.weight"), ("gpt2", "decoder.0.ffn.down.weight")):
        spec = tiny_spec(family)
        wide = replace(spec, family=change(spec.family, init={"std": 0.1}))
        usual, scaled = (initial_value(each, name, (64, 32), seed=1) for each in (spec, wide))
        assert torch.allclose(scaled, 5 * usual, rtol=1e-5)
    spec = tiny_spec("t5")
    wide = replace(spec, family=change(spec.family, init={"std": 0.1}))
    assert initial_value(wide, name, (64, 32), seed=1).equal(initial_value(spec, name, (64, 32), seed=1))
