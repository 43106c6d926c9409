"""Hugging Face's CLIP: `CLIPModel`."""

from __future__ import annotations

import math

from megaptm.families.vit.huggingface import CONVOLUTION, IMAGE_HOOKS
from megaptm.families.vit.spec import CHANNELS
from megaptm.hub.counterpart import LEGACY_END_ID, TEXT_CONFIG, Counterpart
from megaptm.hub.tensor_rules import QKV, VOCABULARY, Conversion, TensorRule, rules_for_stack, weight_and_bias

SECTIONS = {"image": "vision", "text": "text"}
"""megaptm's stack -> name prefix of its model and config section."""
# `CLIPModel` stores the class embedding and the temperature without a row axis.
SQUEEZED = Conversion(lambda w, spec: [w[0].clone()], lambda ws, spec: ws[0][None])


def _layer_rules(stack: str) -> tuple[TensorRule, ...]:
    layer = f"{SECTIONS[stack]}_model.encoder.layers.{{n}}"
    qkv = tuple(f"{layer}.self_attn.{name}_proj" for name in "qkv")
    rules = (
        *weight_and_bias("encoder.{n}.attention_norm", f"{layer}.layer_norm1"),
        *weight_and_bias("encoder.{n}.attention.qkv", *qkv, weight=QKV, bias=QKV),
        *weight_and_bias("encoder.{n}.attention.output", f"{layer}.self_attn.out_proj"),
        *weight_and_bias("encoder.{n}.ffn_norm", f"{layer}.layer_norm2"),
        *weight_and_bias("encoder.{n}.ffn.up", f"{layer}.mlp.fc1"),
        *weight_and_bias("encoder.{n}.ffn.down", f"{layer}.mlp.fc2"),
    )
    return rules_for_stack(rules, stack)


def _text_ids(ids: dict[str, int | None]) -> dict[str, int | None]:
    """Return the special ids of the text model. The end of a text is found by its id, or as the largest id if that is
    unknown."""
    ids |= {} if ids.get("eos_token_id") is not None else {"eos_token_id": LEGACY_END_ID}
    return {f"{TEXT_CONFIG}.{name}": id_ for name, id_ in ids.items()}


TENSOR_RULES = (
    TensorRule("embed.patch.project.weight", ("vision_model.embeddings.patch_embedding.weight",), CONVOLUTION),
    TensorRule("embed.patch.image.weight", ("vision_model.embeddings.class_embedding",), SQUEEZED),
    TensorRule("embed.position.weight", ("vision_model.embeddings.position_embedding.weight",)),
    *weight_and_bias("embed.norm", "vision_model.pre_layrnorm"),
    *_layer_rules("image"),
    *weight_and_bias("image.final", "vision_model.post_layernorm"),
    TensorRule("embed.token.weight", ("text_model.embeddings.token_embedding.weight",), VOCABULARY),
    TensorRule("embed.text_position.weight", ("text_model.embeddings.position_embedding.weight",)),
    *_layer_rules("text"),
    *weight_and_bias("text.final", "text_model.final_layer_norm"),
    TensorRule("head.image-text.image.weight", ("visual_projection.weight",)),
    TensorRule("head.image-text.text.weight", ("text_projection.weight",)),
    TensorRule("head.image-text.scale", ("logit_scale",), SQUEEZED),
)

CLIP = Counterpart(
    family="clip",
    model="CLIPModel",
    sections=("vision_config", "text_config"),
    fields={
        "vision_config.num_hidden_layers": "layers",
        "vision_config.hidden_size": "width",
        "vision_config.num_attention_heads": "heads",
        "vision_config.intermediate_size": "ffn",
        "vision_config.image_size": "image",
        "vision_config.patch_size": "patch",
        "vision_config.layer_norm_eps": "norm_eps",
        "text_config.num_hidden_layers": "text.layers",
        "text_config.hidden_size": "text.width",
        "text_config.num_attention_heads": "text.heads",
        "text_config.intermediate_size": "text.ffn",
        "text_config.max_position_embeddings": "text.context",
        "text_config.vocab_size": "vocabulary",
        "text_config.layer_norm_eps": "norm_eps",
        # The joint space is as wide as the text model, as in all published models.
        "projection_dim": "text.width",
    },
    fixed={
        "vision_config.hidden_act": "quick_gelu",
        "text_config.hidden_act": "quick_gelu",
        "vision_config.num_channels": CHANNELS,
        "vision_config.attention_dropout": 0.0,
        "text_config.attention_dropout": 0.0,
    },
    rules=TENSOR_RULES,
    max_values={"logit_scale": math.log(100)},
    id_fields=_text_ids,
    special_ids={"bos_token_id": 49_406, "eos_token_id": 49_407, "pad_token_id": 49_407},
    unused_prefixes=("vision_model.embeddings.position_ids", "text_model.embeddings.position_ids"),
    processors=("AutoProcessor", "AutoImageProcessor"),
    **IMAGE_HOOKS,
)

COUNTERPARTS = (CLIP,)
