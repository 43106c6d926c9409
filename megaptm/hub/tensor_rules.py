"""Rules of conversion between megaptm's parameters and Hugging Face's: names and forms."""

# H heads, K key width, D width, V vocabulary

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from megaptm.errors import UserError
from megaptm.spec import Block, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

HEADS = "head."
"""Prefix of the names of head parameters."""


@dataclass(frozen=True)
class Conversion:
    """Conversion of one megaptm tensor to one or more Hugging Face tensors, and back."""

    to_hf: Callable[[Tensor, ModelSpec], list[Tensor]]
    from_hf: Callable[[list[Tensor], ModelSpec], Tensor]


# Imported late: counterparts of families are known without torch.
def _concatenate_tensors(tensors: list[Tensor]) -> Tensor:
    import torch

    return torch.cat(tensors)


def _stack_tensors(tensors: list[Tensor]) -> Tensor:
    """Stack tensors of a Hugging Face model along a new second axis."""
    import torch

    return torch.stack(tensors, 1)


def _pad_rows(rows: Tensor, spec: ModelSpec) -> Tensor:
    """Pad the rows [V, ...] of a vocabulary table with zeros to the padded vocabulary."""
    return _concatenate_tensors([rows, rows.new_zeros(spec.padded_vocabulary - len(rows), *rows.shape[1:])])


def _split_projections(fused: Tensor, spec: ModelSpec, *, num_projections: int) -> list[Tensor]:
    """Split rows (head, projection, K), such as queries, keys and values, into one matrix (or bias) of rows (head, K)
    per projection."""
    by_head = fused.unflatten(0, (-1, num_projections, spec.size.key_width))
    # Copies, even of a single head: safetensors rejects views of a larger tensor.
    return [by_head[:, n].flatten(0, 1).clone() for n in range(num_projections)]


def _fuse_projections(projections: list[Tensor], spec: ModelSpec) -> Tensor:
    by_head = [matrix.unflatten(0, (-1, spec.size.key_width)) for matrix in projections]
    return _stack_tensors(by_head).flatten(0, 2)


SAME = Conversion(lambda w, spec: [w], lambda ws, spec: ws[0])
TRANSPOSED = Conversion(lambda w, spec: [w.t()], lambda ws, spec: ws[0].t())
# A copy: safetensors rejects views of a larger tensor.
VOCABULARY = Conversion(lambda w, spec: [w[: spec.vocabulary].clone()], lambda ws, spec: _pad_rows(ws[0], spec))
QKV = Conversion(lambda w, spec: _split_projections(w, spec, num_projections=3), _fuse_projections)
KV = Conversion(lambda w, spec: _split_projections(w, spec, num_projections=2), _fuse_projections)
# Queries, keys and values in one matrix, or bias, with rows ordered (projection, head, K).
JOINED_QKV = Conversion(
    lambda w, spec: [_concatenate_tensors(_split_projections(w, spec, num_projections=3))],
    lambda ws, spec: _fuse_projections(list(ws[0].chunk(3)), spec),
)
GATE_AND_VALUE = Conversion(
    lambda w, spec: list(w.unflatten(0, (-1, 2)).unbind(1)), lambda ws, spec: _stack_tensors(ws).flatten(0, 1)
)
# GPT-2's Conv1D: [inputs, outputs], with the outputs ordered (projection, head, K).
CONV_QKV = Conversion(
    lambda w, spec: [_concatenate_tensors(_split_projections(w, spec, num_projections=3)).t()],
    lambda ws, spec: _fuse_projections(list(ws[0].t().chunk(3)), spec),
)
# Gate and value in one matrix, with rows ordered (gate or value, feature).
JOINED_GATE_AND_VALUE = Conversion(
    lambda w, spec: [w.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)],
    lambda ws, spec: _stack_tensors(list(ws[0].chunk(2))).flatten(0, 1),
)


def always(spec: ModelSpec) -> bool:
    """Return True; the condition of conversion rules that apply to every model."""
    return True


def _any_block(block: Block) -> bool:
    """Return True; the condition of conversion rules that apply to every layer."""
    return True


def has_narrow_tables(spec: ModelSpec) -> bool:
    """Whether a model's embedding tables and layers differ in width, so that there is a projection between them."""
    return spec.size.table_width != spec.size.width


def has_grouped_keys(spec: ModelSpec) -> bool:
    """Whether a model has fewer key heads than query heads, so that queries have a projection of their own."""
    return spec.size.key_heads != spec.size.heads


@dataclass(frozen=True)
class TensorRule:
    """Rule for one megaptm tensor and its Hugging Face tensors, in both directions.

    `{n}` in a name stands for the index of a layer: each layer has the tensor. In `encoder.shared.{n}`, `{n}` is the
    index of a layer that owns shared parameters; Hugging Face's names count such layers by `{group}`, and by `{turn}`
    within the group.
    """

    name: str
    """Name of megaptm's parameter."""
    hf_names: tuple[str, ...]
    """Names of Hugging Face's tensors. Empty if its model has no such tensor: it is not exported, and initialized by an
    import."""
    form: Conversion = SAME
    when: Callable[[ModelSpec], bool] = always
    """Whether a model has the tensor."""
    optional: bool = False
    """Whether Hugging Face's model may lack the tensor; it is then initialized."""
    when_block: Callable[[Block], bool] = _any_block
    """Whether a layer with this block has the tensor."""


def weight_and_bias(
    name: str,
    *hf_names: str,
    weight: Conversion = SAME,
    bias: Conversion = SAME,
    when: Callable[[ModelSpec], bool] = always,
) -> tuple[TensorRule, TensorRule]:
    """Return two tensor rules, for the `.weight` and `.bias` of a linear layer or norm."""
    return (
        TensorRule(f"{name}.weight", tuple(f"{hf_name}.weight" for hf_name in hf_names), weight, when),
        TensorRule(f"{name}.bias", tuple(f"{hf_name}.bias" for hf_name in hf_names), bias, when),
    )


def rules_for_stack(rules: Iterable[TensorRule], stack: str) -> tuple[TensorRule, ...]:
    """Return the tensor rules of an encoder for a stack of another name."""
    return tuple(replace(rule, name=re.sub(r"^encoder\.", f"{stack}.", rule.name)) for rule in rules)


def export_weights(rules: tuple[TensorRule, ...], spec: ModelSpec, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters by Hugging Face's names, without vocabulary padding. Raise UserError if any are missing or
    unknown."""
    exported: dict[str, Tensor] = {}
    used = set()
    for rule, stack in _each_layer(rules, spec):
        if rule.name not in weights:
            raise UserError(f"the weights lack {rule.name}, which {spec.name} with {spec.size.layers} layers has.")
        used.add(rule.name)
        if not rule.hf_names:
            continue
        tensors = rule.form.to_hf(weights[rule.name], stack)
        exported.update({name: tensor.contiguous() for name, tensor in zip(rule.hf_names, tensors, strict=True)})
    if unknown := sorted(set(weights) - used):
        raise UserError(f"the weights have parameters that Hugging Face's model does not: {', '.join(unknown[:5])}.")
    return exported


def import_weights(
    rules: tuple[TensorRule, ...], spec: ModelSpec, hf_weights: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return Hugging Face's parameters by megaptm's names in float32, with padded rows of zeros; and the missing names.

    A head without any parameters does not count as missing: models may be saved without heads.
    """
    weights, missing = {}, []
    present = {_module_name(rule.name) for rule in rules if set(rule.hf_names) & set(hf_weights)}
    for rule, stack in _each_layer(rules, spec):
        lacking = [name for name in rule.hf_names if name not in hf_weights]
        if not rule.hf_names:
            continue
        if not lacking:
            tensors = [hf_weights[name].float() for name in rule.hf_names]
            weights[rule.name] = rule.form.from_hf(tensors, stack).contiguous()
        elif not rule.optional and (not rule.name.startswith(HEADS) or _module_name(rule.name) in present):
            missing += lacking
    return weights, missing


def _module_name(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _each_layer(rules: tuple[TensorRule, ...], spec: ModelSpec) -> Iterator[tuple[TensorRule, ModelSpec]]:
    """Yield each tensor rule with the spec of its stack, because stacks may differ in size."""
    for rule in rules:
        if not rule.when(spec):
            continue
        stack = replace(spec, size=spec.size_of(rule.name.partition(".")[0]))
        if "{n}" not in rule.name:
            yield rule, stack
            continue
        name, layers = rule.name.partition(".")[0], stack.size.layers
        block = spec.family.stacks[name]
        for index, n in enumerate(
            block.sharing.owners(layers) if rule.name.startswith(f"{name}.shared.") else range(layers)
        ):
            if not rule.when_block(block.at(n)):
                continue
            group, turn = divmod(index, block.sharing.cycle)
            hf_names = tuple(hf_name.format(n=n, group=group, turn=turn) for hf_name in rule.hf_names)
            yield replace(rule, name=rule.name.format(n=n), hf_names=hf_names), stack
