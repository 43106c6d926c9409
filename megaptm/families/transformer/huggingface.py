"""Hugging Face's Transformer: `MarianMTModel`, with relu and without biases in attention.

Its position tables have all sines before all cosines; megaptm and the paper alternate them. Every axis of the model's
width is therefore permuted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import KV, QKV, SAME, VOCABULARY, Conversion, TensorRule
from megaptm.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor


def _to_halves(weight: Tensor, axis: int) -> Tensor:
    """Reorder the position features along an axis from megaptm's order to Hugging Face's: all even features, then
    all odd ones."""
    return weight.unflatten(axis, (-1, 2)).transpose(axis, axis + 1).flatten(axis, axis + 1)


def _from_halves(weight: Tensor, axis: int) -> Tensor:
    """Reorder the position features along an axis from Hugging Face's order to megaptm's: the inverse of
    `_to_halves`."""
    return weight.unflatten(axis, (2, -1)).transpose(axis, axis + 1).flatten(axis, axis + 1)


def _permute_axis(form: Conversion, axis: int) -> Conversion:
    """Return the form of a tensor rule that also permutes the features of one axis."""
    return Conversion(
        lambda w, spec: form.to_hf(_to_halves(w, axis), spec),
        lambda ws, spec: _from_halves(form.from_hf(ws, spec), axis),
    )


PERMUTED_ROWS, PERMUTED_COLUMNS = _permute_axis(SAME, 0), _permute_axis(SAME, 1)


def _norm_rules(name: str, hf_name: str) -> tuple[TensorRule, ...]:
    return tuple(TensorRule(f"{name}.{kind}", (f"{hf_name}.{kind}",), PERMUTED_ROWS) for kind in ("weight", "bias"))


def _stack_rules(stack: str) -> tuple[TensorRule, ...]:
    """Return the tensor rules of one stack of the Transformer."""
    name, layer = f"{stack}.{{n}}", f"model.{stack}.layers.{{n}}"
    attention = tuple(f"{layer}.self_attn.{name}_proj.weight" for name in "qkv")
    return (
        TensorRule(f"{name}.attention.qkv.weight", attention, _permute_axis(QKV, 1)),
        TensorRule(f"{name}.attention.output.weight", (f"{layer}.self_attn.out_proj.weight",), PERMUTED_ROWS),
        *_norm_rules(f"{name}.attention_norm", f"{layer}.self_attn_layer_norm"),
        TensorRule(f"{name}.ffn.up.weight", (f"{layer}.fc1.weight",), PERMUTED_COLUMNS),
        TensorRule(f"{name}.ffn.up.bias", (f"{layer}.fc1.bias",)),
        TensorRule(f"{name}.ffn.down.weight", (f"{layer}.fc2.weight",), PERMUTED_ROWS),
        TensorRule(f"{name}.ffn.down.bias", (f"{layer}.fc2.bias",), PERMUTED_ROWS),
        *_norm_rules(f"{name}.ffn_norm", f"{layer}.final_layer_norm"),
    )


CROSS = "model.decoder.layers.{n}.encoder_attn"
TENSOR_RULES = (
    TensorRule("embed.token.weight", ("model.shared.weight",), _permute_axis(VOCABULARY, 1)),
    *_stack_rules("encoder"),
    *_stack_rules("decoder"),
    TensorRule("decoder.{n}.cross.query.weight", (f"{CROSS}.q_proj.weight",), PERMUTED_COLUMNS),
    TensorRule(
        "decoder.{n}.cross.kv.weight", (f"{CROSS}.k_proj.weight", f"{CROSS}.v_proj.weight"), _permute_axis(KV, 1)
    ),
    TensorRule("decoder.{n}.cross.output.weight", (f"{CROSS}.out_proj.weight",), PERMUTED_ROWS),
    *_norm_rules("decoder.{n}.cross_norm", "model.decoder.layers.{n}.encoder_attn_layer_norm"),
)


def _zero_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of parameters of `MarianMTModel` that the Transformer lacks, so that they are zero: biases of
    attention, and of the logits."""
    shapes: dict[str, tuple[int, ...]] = {"final_logits_bias": (1, spec.vocabulary)}
    for stack, attentions in {"encoder": ("self_attn",), "decoder": ("self_attn", "encoder_attn")}.items():
        size = spec.size_of(stack)
        for layer in range(size.layers):
            for attention in attentions:
                for letter in "qkv":
                    name = f"model.{stack}.layers.{layer}.{attention}.{letter}_proj.bias"
                    shapes[name] = (size.heads * size.key_width,)
                shapes[f"model.{stack}.layers.{layer}.{attention}.out_proj.bias"] = (size.width,)
    return shapes


TRANSFORMER = Counterpart(
    family="transformer",
    model="MarianMTModel",
    model_type="marian",
    fields={
        "encoder_layers": "encoder.layers",
        "decoder_layers": "decoder.layers",
        "d_model": "width",
        "encoder_attention_heads": "heads",
        "decoder_attention_heads": "heads",
        "encoder_ffn_dim": "ffn",
        "decoder_ffn_dim": "ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "dropout": "dropout",
    },
    fixed={
        "activation_function": "relu",
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "is_decoder": False,
        "tie_word_embeddings": True,
    },
    rules=TENSOR_RULES,
    zero_parameters=_zero_shapes,
    tied=dict.fromkeys(
        ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        "model.shared.weight",
    ),
    prefix="model.",
    special_ids={"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    unused_prefixes=("model.encoder.embed_positions.", "model.decoder.embed_positions."),
)

COUNTERPARTS = (TRANSFORMER,)
