"""Conversion as a table: which of our parameters is which of Hugging Face's, and in what form, per family."""

# H heads, K key width, D width, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.spec import ModelSpec

HEADS = "head."
"""What the names of the heads' parameters begin with."""


@dataclass(frozen=True)
class Form:
    """How one of our tensors becomes one or more of theirs, and back."""

    give: Callable[[Tensor, ModelSpec], list[Tensor]]
    take: Callable[[list[Tensor], ModelSpec], Tensor]


def _pad(rows: Tensor, spec: ModelSpec) -> Tensor:
    """[V, ...] with rows of zeros up to the padded vocabulary."""
    return torch.cat([rows, rows.new_zeros(spec.padded_vocabulary - len(rows), *rows.shape[1:])])


def _apart(fused: Tensor, spec: ModelSpec, *, streams: int) -> list[Tensor]:
    """Rows (head, stream, K) into one matrix (or bias) of rows (head, K) a stream."""
    by_head = fused.unflatten(0, (spec.size.heads, streams, spec.size.key_width))
    return [by_head[:, n].flatten(0, 1) for n in range(streams)]


def _together(streams: list[Tensor], spec: ModelSpec) -> Tensor:
    by_head = [stream.unflatten(0, (spec.size.heads, spec.size.key_width)) for stream in streams]
    return torch.stack(by_head, 1).flatten(0, 2)


SAME = Form(lambda w, spec: [w], lambda ws, spec: ws[0])
TRANSPOSED = Form(lambda w, spec: [w.t()], lambda ws, spec: ws[0].t())
# A copy: safetensors refuses a tensor that is a part of a larger one.
VOCABULARY = Form(lambda w, spec: [w[: spec.vocabulary].clone()], lambda ws, spec: _pad(ws[0], spec))
QKV = Form(lambda w, spec: _apart(w, spec, streams=3), _together)
KV = Form(lambda w, spec: _apart(w, spec, streams=2), _together)
# GPT-2's Conv1D: [inputs, outputs], with the outputs ordered (stream, head, K).
CONV_QKV = Form(
    lambda w, spec: [torch.cat(_apart(w, spec, streams=3)).t()],
    lambda ws, spec: _together(list(ws[0].t().chunk(3)), spec),
)
CONV_QKV_BIAS = Form(
    lambda w, spec: [torch.cat(_apart(w, spec, streams=3))],
    lambda ws, spec: _together(list(ws[0].chunk(3)), spec),
)


@dataclass(frozen=True)
class TensorRule:
    """`{n}` in a name stands for every layer's number."""

    ours: str
    theirs: tuple[str, ...]
    form: Form = SAME


def _pair(ours: str, *theirs: str, weight: Form = SAME, bias: Form = SAME) -> tuple[TensorRule, TensorRule]:
    """Rows for `.weight` and `.bias`."""
    return (
        TensorRule(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), weight),
        TensorRule(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), bias),
    )


GPT2_ROWS = (
    TensorRule("embed.token.weight", ("transformer.wte.weight",), VOCABULARY),
    TensorRule("embed.position.weight", ("transformer.wpe.weight",)),
    *_pair("decoder.{n}.attention_norm", "transformer.h.{n}.ln_1"),
    *_pair("decoder.{n}.attention.qkv", "transformer.h.{n}.attn.c_attn", weight=CONV_QKV, bias=CONV_QKV_BIAS),
    *_pair("decoder.{n}.attention.output", "transformer.h.{n}.attn.c_proj", weight=TRANSPOSED),
    *_pair("decoder.{n}.ffn_norm", "transformer.h.{n}.ln_2"),
    *_pair("decoder.{n}.ffn.up", "transformer.h.{n}.mlp.c_fc", weight=TRANSPOSED),
    *_pair("decoder.{n}.ffn.down", "transformer.h.{n}.mlp.c_proj", weight=TRANSPOSED),
    *_pair("decoder.final", "transformer.ln_f"),
)

_BERT_SELF = "bert.encoder.layer.{n}.attention.self"
BERT_ROWS = (
    TensorRule("embed.token.weight", ("bert.embeddings.word_embeddings.weight",), VOCABULARY),
    TensorRule("embed.position.weight", ("bert.embeddings.position_embeddings.weight",)),
    TensorRule("embed.segment.weight", ("bert.embeddings.token_type_embeddings.weight",)),
    *_pair("embed.norm", "bert.embeddings.LayerNorm"),
    *_pair(
        "encoder.{n}.attention.qkv",
        f"{_BERT_SELF}.query",
        f"{_BERT_SELF}.key",
        f"{_BERT_SELF}.value",
        weight=QKV,
        bias=QKV,
    ),
    *_pair("encoder.{n}.attention.output", "bert.encoder.layer.{n}.attention.output.dense"),
    *_pair("encoder.{n}.attention_norm", "bert.encoder.layer.{n}.attention.output.LayerNorm"),
    *_pair("encoder.{n}.ffn.up", "bert.encoder.layer.{n}.intermediate.dense"),
    *_pair("encoder.{n}.ffn.down", "bert.encoder.layer.{n}.output.dense"),
    *_pair("encoder.{n}.ffn_norm", "bert.encoder.layer.{n}.output.LayerNorm"),
    *_pair("head.mlm.transform", "cls.predictions.transform.dense"),
    *_pair("head.mlm.norm", "cls.predictions.transform.LayerNorm"),
    TensorRule("head.mlm.vocabulary.bias", ("cls.predictions.bias",), VOCABULARY),
    *_pair("head.next-sentence.pooler", "bert.pooler.dense"),
    *_pair("head.next-sentence.classify", "cls.seq_relationship"),
)


def _t5_stack(stack: str, ffn: int) -> tuple[TensorRule, ...]:
    """Rows that both stacks have; the feed-forward is the last of a block's sub-layers, number `ffn`."""
    block = f"{stack}.block.{{n}}.layer"
    attention = f"{block}.0.SelfAttention"
    return (
        TensorRule(
            f"{stack}.bias_table.weight", (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
        ),
        TensorRule(f"{stack}.{{n}}.attention_norm.weight", (f"{block}.0.layer_norm.weight",)),
        TensorRule(f"{stack}.{{n}}.attention.qkv.weight", tuple(f"{attention}.{name}.weight" for name in "qkv"), QKV),
        TensorRule(f"{stack}.{{n}}.attention.output.weight", (f"{attention}.o.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn_norm.weight", (f"{block}.{ffn}.layer_norm.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn.up.weight", (f"{block}.{ffn}.DenseReluDense.wi.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn.down.weight", (f"{block}.{ffn}.DenseReluDense.wo.weight",)),
        TensorRule(f"{stack}.final.weight", (f"{stack}.final_layer_norm.weight",)),
    )


_T5_CROSS = "decoder.block.{n}.layer.1.EncDecAttention"
T5_ROWS = (
    TensorRule("embed.token.weight", ("shared.weight",), VOCABULARY),
    *_t5_stack("encoder", ffn=1),
    *_t5_stack("decoder", ffn=2),
    TensorRule("decoder.{n}.cross_norm.weight", ("decoder.block.{n}.layer.1.layer_norm.weight",)),
    TensorRule("decoder.{n}.cross.query.weight", (f"{_T5_CROSS}.q.weight",)),
    TensorRule("decoder.{n}.cross.kv.weight", (f"{_T5_CROSS}.k.weight", f"{_T5_CROSS}.v.weight"), KV),
    TensorRule("decoder.{n}.cross.output.weight", (f"{_T5_CROSS}.o.weight",)),
)


def export_weights(rows: tuple[TensorRule, ...], spec: ModelSpec, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters under Hugging Face's names, without padded rows. Nothing may be missing or left over."""
    theirs: dict[str, Tensor] = {}
    used = set()
    for row in _each_layer(rows, spec):
        if row.ours not in weights:
            raise UserError(f"The weights lack {row.ours}, which a {spec.name} of {spec.size.layers} layers has.")
        used.add(row.ours)
        given = row.form.give(weights[row.ours], spec)
        theirs.update({name: tensor.contiguous() for name, tensor in zip(row.theirs, given, strict=True)})
    if unknown := sorted(set(weights) - used):
        raise UserError(f"The weights have parameters with no counterpart at Hugging Face: {', '.join(unknown[:5])}.")
    return theirs


def import_weights(
    rows: tuple[TensorRule, ...], spec: ModelSpec, theirs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Hugging Face's parameters under our names, float32, with padded rows of zeros; and the names that are missing.

    A head that is absent as a whole is not missing: models are saved without theirs.
    """
    ours, missing = {}, []
    present = {_part(row.ours) for row in rows if set(row.theirs) & set(theirs)}
    for row in _each_layer(rows, spec):
        lacking = [name for name in row.theirs if name not in theirs]
        if not lacking:
            ours[row.ours] = row.form.take([theirs[name].float() for name in row.theirs], spec).contiguous()
        elif not row.ours.startswith(HEADS) or _part(row.ours) in present:
            missing += lacking
    return ours, missing


def _part(ours: str) -> str:
    """What a parameter is the weight or the bias of."""
    return ours.rpartition(".")[0]


def _each_layer(rows: tuple[TensorRule, ...], spec: ModelSpec) -> Iterator[TensorRule]:
    for row in rows:
        if "{n}" not in row.ours:
            yield row
            continue
        for n in range(spec.size.layers):
            yield TensorRule(row.ours.format(n=n), tuple(name.format(n=n) for name in row.theirs), row.form)
