"""Transformer-XL against golden values of the released implementations: hidden states and recurrence cache over three
segments, log-probabilities, losses and gradients."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.models.model import Model
from megaptm.spec import Family, ModelSpec, Size, change

GOLDEN = Path(__file__).parents[1] / "golden"
SEGMENTS, LENGTH, ROWS = 3, 7, 2
FAMILY = CATALOGUE["transformer-xl-bytes"]
CASES = ("plain_softmax", "div1", "div1_proj", "div2", "one_cutoff", "untied_bias", "eval_same_length", "pre_norm")
TRAINED = [case for case in CASES if case != "pre_norm"]
"""Cases in which the released code has the same norms as megaptm."""


@cache
def golden(case: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(GOLDEN / f"transformer_xl_{case}.safetensors", "pt") as file:
        meta = {key: json.loads(value) for key, value in file.metadata().items()}
        return {name: file.get_tensor(name) for name in [*file.keys()]}, meta["config"]


def make_family(config: dict[str, Any]) -> Family:
    block = change(
        FAMILY.last_block,
        norm={"position": "pre" if config["pre_lnorm"] else "post"},
        attention={"biases": "layer" if config["untie_r"] else "stack"},
    )
    return change(FAMILY, stacks={"decoder": block})


def make_spec(config: dict[str, Any]) -> ModelSpec:
    size = Size(
        layers=config["n_layer"],
        width=config["d_model"],
        heads=config["n_head"],
        ffn=config["d_inner"],
        memory=config["mem_len"],
        embedding=config["d_embed"],
        inputs={"cutoffs": tuple(config["cutoffs"]), "division": config["div_val"]},
    )
    return ModelSpec(
        family=make_family(config), size=size, vocabulary=config["vocab_size"], context=LENGTH, dropout=0.0
    )


def convert_qkv(weight: Tensor, heads: int) -> Tensor:
    """Reorder rows (q, k, v; head; width) to (head; q, k, v; width)."""
    return weight.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def convert_tensors(tensors: dict[str, Tensor], kind: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Return the released code's `weight` or `grad` tensors under megaptm's names."""
    released = {name.removeprefix(f"{kind}."): value for name, value in tensors.items() if name.startswith(f"{kind}.")}
    converted = _convert_tables(released, config)
    biases = {"content_bias": "r_w_bias", "place_bias": "r_r_bias"}
    for name, released_name in biases.items():
        if not config["untie_r"]:
            converted[f"decoder.{name}.weight"] = released[f"transformer.{released_name}"].t()
    for layer in range(config["n_layer"]):
        source, target = f"transformer.layers.{layer}", f"decoder.{layer}"
        qkv = released[f"{source}.dec_attn.qkv_net.weight"]
        converted[f"{target}.attention.qkv.weight"] = convert_qkv(qkv, config["n_head"])
        converted[f"{target}.attention.place.weight"] = released[f"{source}.dec_attn.r_net.weight"]
        converted[f"{target}.attention.output.weight"] = released[f"{source}.dec_attn.o_net.weight"]
        for kind_ in ("weight", "bias"):
            converted[f"{target}.attention_norm.{kind_}"] = released[f"{source}.dec_attn.layer_norm.{kind_}"]
            converted[f"{target}.ffn_norm.{kind_}"] = released[f"{source}.pos_ff.layer_norm.{kind_}"]
            converted[f"{target}.ffn.up.{kind_}"] = released[f"{source}.pos_ff.CoreNet.0.{kind_}"]
            converted[f"{target}.ffn.down.{kind_}"] = released[f"{source}.pos_ff.CoreNet.3.{kind_}"]
        if config["untie_r"]:
            for name, released_name in biases.items():
                converted[f"{target}.attention.{name}.weight"] = released[f"{source}.dec_attn.{released_name}"].t()
    return converted


def _convert_tables(released: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Return tables, projections and biases of embedding and softmax.

    The released code has a single table for all clusters if they have the same width.
    """
    embedded, out = "transformer.word_emb.emb_layers", "crit.out_layers"
    if not config["cutoffs"]:
        return {
            "embed.token.weight": released[f"{embedded}.0.weight"],
            "head.lm.vocabulary.bias": released[f"{out}.0.bias"],
        }
    edges = [0, *config["cutoffs"], config["vocab_size"]]
    converted = {"head.lm.cluster.weight": released["crit.cluster_weight"]}
    converted["head.lm.cluster_bias.bias"] = released["crit.cluster_bias"]
    is_single_table = config["div_val"] == 1
    for cluster, (first, stop) in enumerate(pairwise(edges)):
        source = 0 if is_single_table else cluster
        table, bias = released[f"{embedded}.{source}.weight"], released[f"{out}.{source}.bias"]
        converted[f"embed.token.tables.{cluster}.weight"] = table[first:stop] if is_single_table else table
        converted[f"head.lm.word_bias.{cluster}.bias"] = bias[first:stop] if is_single_table else bias
    for name, value in released.items():
        if name.startswith("transformer.word_emb.emb_projs."):
            converted[f"embed.token.maps.{name.rpartition('.')[2]}.weight"] = value
    if "crit.out_projs.0" in released:
        converted["head.lm.narrow.weight"] = released["crit.out_projs.0"].t()
    return converted


def build_case(case: str) -> Model:
    tensors, config = golden(case)
    model = Model(make_spec(config)).eval()
    weights = convert_tensors(tensors, "weight", config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.zero_()
            if name.startswith("decoder.final."):  # the released code has no final norm
                continue
            value = weights.pop(name)
            parameter[tuple(slice(n) for n in value.shape)] = value
    assert not weights
    return model


def make_segment(case: str, index: int) -> dict[str, Tensor]:
    stream = golden(case)[0]["stream"]
    start = index * LENGTH
    return {"tokens": stream[:, start : start + LENGTH], "labels": stream[:, start + 1 : start + LENGTH + 1]}


def make_cache(model: Model, start: str, config: dict[str, Any]) -> dict[str, StackRecurrenceCache]:
    """Return the initial recurrence cache: empty, or zeros that are attended to (`zeros_start`)."""
    caches = model.empty_caches(ROWS)
    stack_cache = caches["decoder"]
    if start == "zeros_start":
        stack_cache.filled = stack_cache.filled + stack_cache.length
    stack_cache.farthest = config["clamp_len"] if config["clamp_len"] > 0 else None
    stack_cache.same_length = config["same_length"]
    return caches


def differences(*, clusters: bool) -> tuple[float, float]:
    """Return the largest absolute difference of log-probabilities over three segments, and of gradients of the last
    segment's loss."""
    max_difference, max_gradient_difference = 0.0, 0.0
    for case in TRAINED if clusters else ("plain_softmax",):
        (tensors, config), model = golden(case), build_case(case)
        caches = make_cache(model, "empty_start", config)
        for index in range(SEGMENTS):
            logits = model.logits({"tokens": make_segment(case, index)["tokens"]}, caches=caches)["lm"]
            difference = logits.log_softmax(-1) - tensors[f"empty_start.{index}.log_probs"]
            max_difference = max(max_difference, float(difference.detach().abs().max()))
            loss, count = model(make_segment(case, index), caches=caches).losses["lm"]
            caches = {name: stack_cache.after_sequence() for name, stack_cache in caches.items()}
        (loss / count).backward()
        for name, value in convert_tensors(tensors, "grad", config).items():
            grad = model.get_parameter(name).grad
            assert grad is not None
            difference = grad[tuple(slice(n) for n in value.shape)] - value
            max_gradient_difference = max(max_gradient_difference, float(difference.detach().abs().max()))
    return max_difference, max_gradient_difference


@pytest.mark.parametrize("start", ["empty_start", "zeros_start"])
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_cache_and_log_probabilities_equal_released_code(case: str, start: str) -> None:
    (tensors, config), model = golden(case), build_case(case)
    caches = make_cache(model, start, config)
    for index in range(SEGMENTS):
        batch = make_segment(case, index)
        with torch.no_grad():
            logits = model.logits({"tokens": batch["tokens"]}, caches=caches)["lm"]
        stack_cache = caches["decoder"]
        hidden = tensors[f"{start}.{index}.hidden"]
        for layer, read in stack_cache.current_states.items():
            torch.testing.assert_close(read.transpose(0, 1), hidden[layer], rtol=1e-5, atol=1e-5)
        caches = {"decoder": stack_cache.after_sequence()}
        cache = tensors[f"{start}.{index}.mems"]
        assert caches["decoder"].filled.tolist() == [cache.shape[1]] * ROWS
        for layer, states in caches["decoder"].states.items():
            filled = states[len(states) - cache.shape[1] :]
            torch.testing.assert_close(filled, cache[layer], rtol=1e-5, atol=1e-5)
        if not config["pre_lnorm"]:  # the released code has no final norm
            log_probs = logits.log_softmax(-1)
            torch.testing.assert_close(log_probs, tensors[f"{start}.{index}.log_probs"], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("case", TRAINED)
def test_loss_and_gradients_equal_released_code(case: str) -> None:
    (tensors, config), model = golden(case), build_case(case)
    caches = make_cache(model, "empty_start", config)
    for index in range(SEGMENTS):
        loss, count = model(make_segment(case, index), caches=caches).losses["lm"]
        nll = tensors[f"empty_start.{index}.nll_targets"]
        torch.testing.assert_close(loss / count, nll.mean(), rtol=1e-5, atol=1e-5)
        caches = {name: stack_cache.after_sequence() for name, stack_cache in caches.items()}
    (loss / count).backward()
    expected = convert_tensors(tensors, "grad", config)
    for name, parameter in model.named_parameters():
        value = expected.pop(name)
        assert parameter.grad is not None
        gradient = parameter.grad[tuple(slice(n) for n in value.shape)]
        torch.testing.assert_close(gradient, value, rtol=1e-4, atol=1e-5)
    assert not expected
