"""Transformer-XL against the released implementations, by the golden files: what layers say and remember over three
segments, log-probabilities, losses of each token, every gradient."""

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
from megaptm.layers.past import Past
from megaptm.models import Model, build_model
from megaptm.spec import Family, ModelSpec, Size, change

GOLDEN = Path(__file__).parents[1] / "golden"
SEGMENTS, LENGTH, ROWS = 3, 7, 2
FAMILY = CATALOGUE["transformer-xl-bytes"]
CASES = ("plain_softmax", "div1", "div1_proj", "div2", "one_cutoff", "untied_bias", "eval_same_length", "pre_norm")
TRAINED = [case for case in CASES if case != "pre_norm"]
"""Whose last norm is ours."""


@cache
def golden(case: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(GOLDEN / f"transformer_xl_{case}.safetensors", "pt") as file:
        meta = {key: json.loads(value) for key, value in file.metadata().items()}
        return {name: file.get_tensor(name) for name in [*file.keys()]}, meta["config"]


def family_of(config: dict[str, Any]) -> Family:
    block = change(
        FAMILY.last_block,
        norm={"position": "pre" if config["pre_lnorm"] else "post"},
        attention={"biases": "layer" if config["untie_r"] else "stack"},
    )
    return change(FAMILY, stacks={"decoder": block})


def spec_of(config: dict[str, Any]) -> ModelSpec:
    size = Size(
        layers=config["n_layer"],
        width=config["d_model"],
        heads=config["n_head"],
        ffn=config["d_inner"],
        memory=config["mem_len"],
        embedding=config["d_embed"],
        cutoffs=tuple(config["cutoffs"]),
        division=config["div_val"],
    )
    return ModelSpec(family=family_of(config), size=size, vocabulary=config["vocab_size"], context=LENGTH, dropout=0.0)


def qkv(theirs: Tensor, heads: int) -> Tensor:
    """Rows (q, k, v; head; width) as ours have it: (head; q, k, v; width)."""
    return theirs.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def renamed(tensors: dict[str, Tensor], kind: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Their `weight` or `grad` under our names."""
    theirs = {name.removeprefix(f"{kind}."): value for name, value in tensors.items() if name.startswith(f"{kind}.")}
    ours = _tokens(theirs, config)
    biases = {"content_bias": "r_w_bias", "place_bias": "r_r_bias"}
    for name, their in biases.items():
        if not config["untie_r"]:
            ours[f"decoder.{name}.weight"] = theirs[f"transformer.{their}"].t()
    for layer in range(config["n_layer"]):
        at, own = f"transformer.layers.{layer}", f"decoder.{layer}"
        ours[f"{own}.attention.qkv.weight"] = qkv(theirs[f"{at}.dec_attn.qkv_net.weight"], config["n_head"])
        ours[f"{own}.attention.place.weight"] = theirs[f"{at}.dec_attn.r_net.weight"]
        ours[f"{own}.attention.output.weight"] = theirs[f"{at}.dec_attn.o_net.weight"]
        for kind_ in ("weight", "bias"):
            ours[f"{own}.attention_norm.{kind_}"] = theirs[f"{at}.dec_attn.layer_norm.{kind_}"]
            ours[f"{own}.ffn_norm.{kind_}"] = theirs[f"{at}.pos_ff.layer_norm.{kind_}"]
            ours[f"{own}.ffn.up.{kind_}"] = theirs[f"{at}.pos_ff.CoreNet.0.{kind_}"]
            ours[f"{own}.ffn.down.{kind_}"] = theirs[f"{at}.pos_ff.CoreNet.3.{kind_}"]
        if config["untie_r"]:
            for name, their in biases.items():
                ours[f"{own}.attention.{name}.weight"] = theirs[f"{at}.dec_attn.{their}"].t()
    return ours


def _tokens(theirs: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Tables, maps and biases of input and softmax. Of clusters as wide as each other theirs is one table."""
    embedded, out = "transformer.word_emb.emb_layers", "crit.out_layers"
    if not config["cutoffs"]:
        return {
            "embed.token.weight": theirs[f"{embedded}.0.weight"],
            "head.lm.vocabulary.bias": theirs[f"{out}.0.bias"],
        }
    edges = [0, *config["cutoffs"], config["vocab_size"]]
    ours = {"head.lm.cluster.weight": theirs["crit.cluster_weight"]}
    ours["head.lm.cluster_bias.bias"] = theirs["crit.cluster_bias"]
    for number, (first, stop) in enumerate(pairwise(edges)):
        one_table = config["div_val"] == 1
        table, bias = (
            theirs[name.format(0 if one_table else number)] for name in (f"{embedded}.{{}}.weight", f"{out}.{{}}.bias")
        )
        ours[f"embed.token.tables.{number}.weight"] = table[first:stop] if one_table else table
        ours[f"head.lm.word_bias.{number}.bias"] = bias[first:stop] if one_table else bias
    for name, value in theirs.items():
        if name.startswith("transformer.word_emb.emb_projs."):
            ours[f"embed.token.maps.{name.rpartition('.')[2]}.weight"] = value
    if "crit.out_projs.0" in theirs:
        ours["head.lm.narrow.weight"] = theirs["crit.out_projs.0"].t()
    return ours


def model_of(case: str) -> Model:
    tensors, config = golden(case)
    model = build_model(spec_of(config)).eval()
    weights = renamed(tensors, "weight", config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.zero_()
            if name.startswith("decoder.final."):  # theirs has none
                continue
            value = weights.pop(name)
            parameter[tuple(slice(n) for n in value.shape)] = value
    assert not weights
    return model


def segment(case: str, number: int) -> dict[str, Tensor]:
    stream = golden(case)[0]["stream"]
    at = number * LENGTH
    return {"tokens": stream[:, at : at + LENGTH], "labels": stream[:, at + 1 : at + LENGTH + 1]}


def start_of(model: Model, start: str, config: dict[str, Any]) -> dict[str, Past]:
    """`zeros_start` takes zeros for something that was read."""
    pasts = model.empty_pasts(ROWS)
    past = pasts["decoder"]
    if start == "zeros_start":
        past.filled = past.filled + past.length
    past.farthest = config["clamp_len"] if config["clamp_len"] > 0 else None
    past.same_length = config["same_length"]
    return pasts


def differences(*, clusters: bool) -> tuple[float, float]:
    """The largest, of log-probabilities over three segments and of gradients of the last one's loss."""
    said, gradients = 0.0, 0.0
    for case in TRAINED if clusters else ("plain_softmax",):
        (tensors, config), model = golden(case), model_of(case)
        pasts = start_of(model, "empty_start", config)
        for number in range(SEGMENTS):
            logits = model.logits({"tokens": segment(case, number)["tokens"]}, pasts=pasts)["lm"]
            gap = logits.log_softmax(-1) - tensors[f"empty_start.{number}.log_probs"]
            said = max(said, float(gap.detach().abs().max()))
            loss, count = model(segment(case, number), pasts=pasts).losses["lm"]
            pasts = {name: past.moved_on() for name, past in pasts.items()}
        (loss / count).backward()
        for name, value in renamed(tensors, "grad", config).items():
            grad = model.get_parameter(name).grad
            assert grad is not None
            gap = grad[tuple(slice(n) for n in value.shape)] - value
            gradients = max(gradients, float(gap.detach().abs().max()))
    return said, gradients


@pytest.mark.parametrize("start", ["empty_start", "zeros_start"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_said_and_remembered_over_three_segments(case: str, start: str) -> None:
    (tensors, config), model = golden(case), model_of(case)
    stack = model.stack("decoder")
    assert stack is not None
    pasts = start_of(model, start, config)
    for number in range(SEGMENTS):
        batch = segment(case, number)
        with torch.no_grad():
            logits = model.logits({"tokens": batch["tokens"]}, pasts=pasts)["lm"]
        past = pasts["decoder"]
        hidden = tensors[f"{start}.{number}.hidden"]
        for layer, read in past.seen.items():
            torch.testing.assert_close(read.transpose(0, 1), hidden[layer], rtol=1e-5, atol=1e-5)
        pasts = {"decoder": past.moved_on()}
        remembered = tensors[f"{start}.{number}.mems"]
        assert pasts["decoder"].filled.tolist() == [remembered.shape[1]] * ROWS
        for layer, states in pasts["decoder"].states.items():
            there = states[len(states) - remembered.shape[1] :]
            torch.testing.assert_close(there, remembered[layer], rtol=1e-5, atol=1e-5)
        if not config["pre_lnorm"]:  # theirs has no norm at the end
            log_probs = logits.log_softmax(-1)
            torch.testing.assert_close(log_probs, tensors[f"{start}.{number}.log_probs"], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("case", TRAINED)
def test_the_loss_of_a_segment_and_every_gradient(case: str) -> None:
    (tensors, config), model = golden(case), model_of(case)
    pasts = start_of(model, "empty_start", config)
    for number in range(SEGMENTS):
        loss, count = model(segment(case, number), pasts=pasts).losses["lm"]
        nll = tensors[f"empty_start.{number}.nll_targets"]
        torch.testing.assert_close(loss / count, nll.mean(), rtol=1e-5, atol=1e-5)
        pasts = {name: past.moved_on() for name, past in pasts.items()}
    (loss / count).backward()
    wanted = renamed(tensors, "grad", config)
    for name, parameter in model.named_parameters():
        value = wanted.pop(name)
        assert parameter.grad is not None
        found = parameter.grad[tuple(slice(n) for n in value.shape)]
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)
    assert not wanted
