"""Rules of conversion between megaptm's parameters and Hugging Face's: names and forms."""

# H heads, K key width, D width, V vocabulary

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from megaptm.errors import UserError
from megaptm.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

HEADS = "head."
"""Name prefix of parameters of heads."""


@dataclass(frozen=True)
class Form:
    """Conversion of one megaptm tensor to one or more Hugging Face tensors, and back."""

    give: Callable[[Tensor, ModelSpec], list[Tensor]]
    take: Callable[[list[Tensor], ModelSpec], Tensor]


# Imported late: counterparts of families are known without torch.
def _cat(tensors: list[Tensor]) -> Tensor:
    import torch

    return torch.cat(tensors)


def _stack(tensors: list[Tensor]) -> Tensor:
    """Stack along a new second axis."""
    import torch

    return torch.stack(tensors, 1)


def _pad(rows: Tensor, spec: ModelSpec) -> Tensor:
    """Pad rows [V, ...] with zeros to the padded vocabulary."""
    return _cat([rows, rows.new_zeros(spec.padded_vocabulary - len(rows), *rows.shape[1:])])


def _apart(fused: Tensor, spec: ModelSpec, *, streams: int) -> list[Tensor]:
    """Split rows (head, stream, K) into one matrix (or bias) of rows (head, K) per stream."""
    by_head = fused.unflatten(0, (-1, streams, spec.size.key_width))
    # Copies, even of a single head: safetensors rejects views of a larger tensor.
    return [by_head[:, n].flatten(0, 1).clone() for n in range(streams)]


def _together(streams: list[Tensor], spec: ModelSpec) -> Tensor:
    by_head = [stream.unflatten(0, (-1, spec.size.key_width)) for stream in streams]
    return _stack(by_head).flatten(0, 2)


def _pairs(streams: list[Tensor]) -> Tensor:
    """Join to rows (feature, stream)."""
    return _stack(streams).flatten(0, 1)


SAME = Form(lambda w, spec: [w], lambda ws, spec: ws[0])
TRANSPOSED = Form(lambda w, spec: [w.t()], lambda ws, spec: ws[0].t())
# A copy, for the same reason.
VOCABULARY = Form(lambda w, spec: [w[: spec.vocabulary].clone()], lambda ws, spec: _pad(ws[0], spec))
QKV = Form(lambda w, spec: _apart(w, spec, streams=3), _together)
KV = Form(lambda w, spec: _apart(w, spec, streams=2), _together)
GATE_AND_VALUE = Form(lambda w, spec: list(w.unflatten(0, (-1, 2)).unbind(1)), lambda ws, spec: _pairs(ws))
# GPT-2's Conv1D: [inputs, outputs], with the outputs ordered (stream, head, K).
CONV_QKV = Form(
    lambda w, spec: [_cat(_apart(w, spec, streams=3)).t()],
    lambda ws, spec: _together(list(ws[0].t().chunk(3)), spec),
)
CONV_QKV_BIAS = Form(
    lambda w, spec: [_cat(_apart(w, spec, streams=3))],
    lambda ws, spec: _together(list(ws[0].chunk(3)), spec),
)


def always(spec: ModelSpec) -> bool:
    """Return True: condition of rules that apply to every model."""
    return True


def narrow_tables(spec: ModelSpec) -> bool:
    """Whether tables and model differ in width, so that there is a projection between them."""
    return spec.size.table_width != spec.size.width


@dataclass(frozen=True)
class TensorRule:
    """Rule for one megaptm tensor and its Hugging Face tensors, in both directions.

    `{n}` in a name stands for the index of each layer; in `encoder.shared.{n}` for that of each layer that owns shared
    parameters, which `{group}` and `{turn}` count differently: by group, and by index within it.
    """

    ours: str
    theirs: tuple[str, ...]
    """Empty if Hugging Face's model has no such tensor: it is not exported, and initialized by an import."""
    form: Form = SAME
    when: Callable[[ModelSpec], bool] = always
    """Condition on the models that have it."""
    optional: bool = False
    """Whether Hugging Face's model may lack it; it is then initialized."""
    of: str | None = None
    """Attention name of the layers that have it; None: all layers."""


def pair(
    ours: str,
    *theirs: str,
    weight: Form = SAME,
    bias: Form = SAME,
    when: Callable[[ModelSpec], bool] = always,
) -> tuple[TensorRule, TensorRule]:
    """Return two rules, for the `.weight` and `.bias` of a linear layer or norm."""
    return (
        TensorRule(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), weight, when),
        TensorRule(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), bias, when),
    )


def of_stack(rows: Iterable[TensorRule], stack: str) -> tuple[TensorRule, ...]:
    """Return the rules of an encoder for a stack of another name."""
    return tuple(replace(row, ours=re.sub(r"^encoder\.", f"{stack}.", row.ours)) for row in rows)


def export_weights(rows: tuple[TensorRule, ...], spec: ModelSpec, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters by Hugging Face's names, without vocabulary padding. Raise UserError if any are missing or
    unknown."""
    theirs: dict[str, Tensor] = {}
    used = set()
    for row, stack in _each_layer(rows, spec):
        if row.ours not in weights:
            raise UserError(f"The weights lack {row.ours}, which a {spec.name} of {spec.size.layers} layers has.")
        used.add(row.ours)
        if not row.theirs:
            continue
        given = row.form.give(weights[row.ours], stack)
        theirs.update({name: tensor.contiguous() for name, tensor in zip(row.theirs, given, strict=True)})
    if unknown := sorted(set(weights) - used):
        raise UserError(f"The weights have parameters with no counterpart at Hugging Face: {', '.join(unknown[:5])}.")
    return theirs


def import_weights(
    rows: tuple[TensorRule, ...], spec: ModelSpec, theirs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return Hugging Face's parameters by megaptm's names in float32, with padded rows of zeros; and the missing names.

    A head without any parameters does not count as missing: models may be saved without heads.
    """
    ours, missing = {}, []
    present = {_part(row.ours) for row in rows if set(row.theirs) & set(theirs)}
    for row, stack in _each_layer(rows, spec):
        lacking = [name for name in row.theirs if name not in theirs]
        if not row.theirs:
            continue
        if not lacking:
            ours[row.ours] = row.form.take([theirs[name].float() for name in row.theirs], stack).contiguous()
        elif not row.optional and (not row.ours.startswith(HEADS) or _part(row.ours) in present):
            missing += lacking
    return ours, missing


def _part(ours: str) -> str:
    """Return the module name of a parameter."""
    return ours.rpartition(".")[0]


def _each_layer(rows: tuple[TensorRule, ...], spec: ModelSpec) -> Iterator[tuple[TensorRule, ModelSpec]]:
    """Yield each rule with the spec of its stack, because stacks may differ in size."""
    for row in rows:
        if not row.when(spec):
            continue
        stack = replace(spec, size=spec.size_of(row.ours.partition(".")[0]))
        if "{n}" not in row.ours:
            yield row, stack
            continue
        name, layers = row.ours.partition(".")[0], stack.size.layers
        block = spec.family.stacks[name]
        for place, n in enumerate(block.owners(layers) if row.ours.startswith(f"{name}.shared.") else range(layers)):
            if row.of not in (None, block.at(n).attention):
                continue
            group, turn = divmod(place, block.cycle)
            theirs = tuple(their.format(n=n, group=group, turn=turn) for their in row.theirs)
            yield replace(row, ours=row.ours.format(n=n), theirs=theirs), stack
