"""Hugging Face's T5Gemma: `T5GemmaForConditionalGeneration`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megaptm.errors import UserError
from megaptm.families.gemma.huggingface import GEMMA2, GLOBAL, LOCAL, layer_types
from megaptm.families.mistral.huggingface import single_value_of
from megaptm.hub.counterpart import MAX_VALUE, is_even
from megaptm.hub.rope import ROPE_PARAMETERS
from megaptm.hub.tensor_rules import GATE_AND_VALUE, KV, QKV, VOCABULARY, TensorRule
from megaptm.spec import AttentionSpec, Block, ModelSpec, SlidingWindowSpec

STACKS = ("encoder", "decoder")
"""Stacks, which are also the sections of a config."""
FIELDS = {
    "num_hidden_layers": "{stack}.layers",
    "hidden_size": "{stack}.width",
    "num_attention_heads": "{stack}.heads",
    "num_key_value_heads": "{stack}.kv_heads",
    "head_dim": "{stack}.head_width",
    "intermediate_size": "{stack}.ffn",
    "sliding_window": "{stack}.window",
    "query_pre_attn_scalar": "{stack}.scale_width",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context",
    "rms_norm_eps": "norm_eps",
    "rope_parameters": ROPE_PARAMETERS,
}
"""Field of a section -> name of its value."""
NORMS = {
    "attention_norm": "pre_self_attn_layernorm",
    "attention_output_norm": "post_self_attn_layernorm",
    "cross_norm": "pre_cross_attn_layernorm",
    "cross_output_norm": "post_cross_attn_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_output_norm": "post_feedforward_layernorm",
}


def _rules(stack: str) -> tuple[TensorRule, ...]:
    """Return the tensor rules of a stack."""

    def has_grouped_keys(spec: ModelSpec) -> bool:
        return spec.size_of(stack).key_heads != spec.size_of(stack).heads

    layer, own = f"model.{stack}.layers.{{n}}", f"{stack}.{{n}}"
    attention, cross = f"{layer}.self_attn", f"{layer}.cross_attn"
    norms = {name: hf_name for name, hf_name in NORMS.items() if stack == "decoder" or "cross" not in name}
    qkv = tuple(f"{attention}.{name}_proj.weight" for name in "qkv")
    return (
        *(TensorRule(f"{own}.{name}.weight", (f"{layer}.{hf_name}.weight",)) for name, hf_name in norms.items()),
        TensorRule(f"{own}.attention.qkv.weight", qkv, QKV, when=lambda spec: not has_grouped_keys(spec)),
        TensorRule(f"{own}.attention.query.weight", qkv[:1], when=has_grouped_keys),
        TensorRule(f"{own}.attention.kv.weight", qkv[1:], KV, when=has_grouped_keys),
        TensorRule(f"{own}.attention.output.weight", (f"{attention}.o_proj.weight",)),
        *(
            ()
            if stack == "encoder"
            else (
                TensorRule(f"{own}.cross.query.weight", (f"{cross}.q_proj.weight",)),
                TensorRule(f"{own}.cross.kv.weight", (f"{cross}.k_proj.weight", f"{cross}.v_proj.weight"), KV),
                TensorRule(f"{own}.cross.output.weight", (f"{cross}.o_proj.weight",)),
            )
        ),
        TensorRule(
            f"{own}.ffn.up.weight", (f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight"), GATE_AND_VALUE
        ),
        TensorRule(f"{own}.ffn.down.weight", (f"{layer}.mlp.down_proj.weight",)),
        TensorRule(f"{stack}.final.weight", (f"model.{stack}.norm.weight",)),
    )


def _sides(block: Block) -> int:
    """Return the number of sides of a position on which its window is."""
    return 1 if block.causal else 2


def _further_values(spec: ModelSpec) -> dict[str, Any]:
    """Return window and width of the scale of each stack."""
    blocks = spec.family.stacks
    if len({record.rope for block in blocks.values() for record in block.attentions}) > 1:
        raise UserError(
            f"model.attention has rotary parameters that differ among layers: {spec.name} at Hugging Face has one set "
            "for all layers. Use `megaptm.load(RUN)` in Python."
        )
    values = {}
    for stack, block in blocks.items():
        values[f"{stack}.window"] = single_value_of(spec, block, "window") // _sides(block)
        scale = single_value_of(spec, block, "scale_width")
        values[f"{stack}.scale_width"] = spec.size_of(stack).key_width if scale is None else scale
    return values


def _read_attention(block: Block, values: Mapping[str, Any]) -> tuple[AttentionSpec, ...]:
    """Return the kinds of attention of a stack, with window and scale of its section."""
    stack = "decoder" if block.causal else "encoder"
    scale = values[f"{stack}.scale_width"]
    records = [
        replace(record, scale_width=None if scale == values[f"{stack}.head_width"] else scale)
        for record in block.attentions
    ]
    return tuple(
        replace(record, window=values[f"{stack}.window"] * _sides(block))
        if isinstance(record, SlidingWindowSpec)
        else record
        for record in records
    )


def _id_fields(ids: dict[str, int | None]) -> dict[str, int | None]:
    """Return the special ids of both sections. The class starts texts of the decoder with `bos_token_id`."""
    if "decoder_start_token_id" in ids:
        ids = ids | {"bos_token_id": ids["decoder_start_token_id"]}
    return {f"{stack}.{name}": id_ for stack in STACKS for name, id_ in ids.items()}


FIXED = {name: GEMMA2.fixed[name] for name in ("hidden_activation", "attention_bias", "attn_logit_softcapping")}
T5GEMMA = replace(
    GEMMA2,
    family="t5gemma",
    model="T5GemmaForConditionalGeneration",
    sections=STACKS,
    fields={
        **{f"{stack}.{field}": name.format(stack=stack) for stack in STACKS for field, name in FIELDS.items()},
        "vocab_size": "vocabulary",
        "dropout_rate": "dropout",
        "attention_dropout": "attention_dropout",
    },
    checks={f"{stack}.head_width": (f"an even number from 2 to {MAX_VALUE:,}", is_even) for stack in STACKS},
    further_values=_further_values,
    read_attention=_read_attention,
    fixed={
        **{f"{stack}.{name}": value for stack in STACKS for name, value in FIXED.items()},
        **{f"{stack}.layer_types": layer_types([LOCAL, GLOBAL], f"{stack}.") for stack in STACKS},
        "decoder.final_logit_softcapping": GEMMA2.fixed["final_logit_softcapping"],
        "tie_word_embeddings": True,
    },
    optional_fields=frozenset(f"{stack}.layer_types" for stack in STACKS),
    earlier_fields=tuple(f"{stack}.{name}" for stack in STACKS for name in ("rope_theta", "rope_scaling")),
    rules=(
        TensorRule("embed.encoder_token.weight", ("model.encoder.embed_tokens.weight",), VOCABULARY),
        TensorRule("embed.token.weight", ("model.decoder.embed_tokens.weight",), VOCABULARY),
        *_rules("encoder"),
        *_rules("decoder"),
    ),
    tied={"lm_head.out_proj.weight": "model.decoder.embed_tokens.weight"},
    id_fields=_id_fields,
    special_ids={"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
)

COUNTERPARTS = (T5GEMMA,)
