"""Hugging Face's ViT: `ViTForImageClassification`."""

from __future__ import annotations

from typing import Any

from megaptm.errors import UserError
from megaptm.families.albert.huggingface import count_labels
from megaptm.families.vit.image_processor import apply_processor, complete_config, write_processor
from megaptm.families.vit.resolution import resize_position_table
from megaptm.families.vit.spec import CHANNELS, patch_side, patches_per_side
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.folder import CONFIG
from megaptm.hub.tensor_rules import QKV, VOCABULARY, Conversion, TensorRule, weight_and_bias
from megaptm.spec import ModelSpec

LAYER = "vit.encoder.layer.{n}"
ATTENTION = tuple(f"{LAYER}.attention.attention.{name}" for name in ("query", "key", "value"))


def _predicts_patches(spec: ModelSpec) -> bool:
    return "masked-patch" in spec.family.heads


# `ViTForImageClassification` has a convolution as patch projection, and vectors with a batch axis of one.
CONVOLUTION = Conversion(
    lambda w, spec: [w.unflatten(1, (CHANNELS, patch_side(spec), patch_side(spec))).clone()],
    lambda ws, spec: ws[0].flatten(1),
)
BATCH_OF_ONE = Conversion(lambda w, spec: [w[None].clone()], lambda ws, spec: ws[0][0])


def _image_values(spec: ModelSpec) -> dict[str, Any]:
    return {"patch": patch_side(spec), "image": patches_per_side(spec) * patch_side(spec)}


def _read_image(counterpart: Counterpart, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an image model's Hugging Face config with the number of positions, which follows from the
    side of an image."""
    if values["image"] % values["patch"]:
        raise UserError(
            f"{CONFIG}: {counterpart.field_name('patch')} ({values['patch']}) does not divide "
            f"{counterpart.field_name('image')} ({values['image']}); such a model cannot be imported."
        )
    return values | {"positions": (values["image"] // values["patch"]) ** 2 + 1}


IMAGE_HOOKS: dict[str, Any] = {
    "further_values": _image_values,
    "read_values": _read_image,
    "write_files": write_processor,
    "complete_model": apply_processor,
    "complete_config": complete_config,
    "resize": resize_position_table,
}
"""Hooks of counterparts whose models read images."""
TENSOR_RULES = (
    TensorRule("embed.patch.project.weight", ("vit.embeddings.patch_embeddings.projection.weight",), CONVOLUTION),
    TensorRule("embed.patch.project.bias", ("vit.embeddings.patch_embeddings.projection.bias",)),
    TensorRule("embed.patch.image.weight", ("vit.embeddings.cls_token",), BATCH_OF_ONE),
    TensorRule("embed.patch.mask.weight", (), when=_predicts_patches),
    TensorRule("embed.position.weight", ("vit.embeddings.position_embeddings",), BATCH_OF_ONE),
    *weight_and_bias("encoder.{n}.attention_norm", f"{LAYER}.layernorm_before"),
    *weight_and_bias("encoder.{n}.attention.qkv", *ATTENTION, weight=QKV, bias=QKV),
    *weight_and_bias("encoder.{n}.attention.output", f"{LAYER}.attention.output.dense"),
    *weight_and_bias("encoder.{n}.ffn_norm", f"{LAYER}.layernorm_after"),
    *weight_and_bias("encoder.{n}.ffn.up", f"{LAYER}.intermediate.dense"),
    *weight_and_bias("encoder.{n}.ffn.down", f"{LAYER}.output.dense"),
    *weight_and_bias("encoder.final", "vit.layernorm"),
    TensorRule("head.image-label.table.weight", ("classifier.weight",), VOCABULARY),
    TensorRule("head.image-label.vocabulary.bias", ("classifier.bias",), VOCABULARY),
)

VIT = Counterpart(
    family="vit",
    model="ViTForImageClassification",
    fields={
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "intermediate_size": "ffn",
        "num_labels": "vocabulary",
        "image_size": "image",
        "patch_size": "patch",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "dropout",
    },
    derived={"num_labels": count_labels},
    fixed={
        "hidden_act": "gelu",
        "num_channels": CHANNELS,
        "qkv_bias": True,
        "attention_probs_dropout_prob": 0.0,
        "head_dim": lambda config: config["hidden_size"] // config["num_attention_heads"],
    },
    optional_fields=frozenset(("head_dim",)),
    rules=TENSOR_RULES,
    # As in published folders, whatever versions of transformers call them in memory.
    renames={
        r"^(vit\.)?layers\.": r"\1encoder.layer.",
        r"\.attention\.q_proj\.": ".attention.attention.query.",
        r"\.attention\.k_proj\.": ".attention.attention.key.",
        r"\.attention\.v_proj\.": ".attention.attention.value.",
        r"\.attention\.o_proj\.": ".attention.output.dense.",
        r"\.mlp\.fc1\.": ".intermediate.dense.",
        r"\.mlp\.fc2\.": ".output.dense.",
    },
    prefix="vit.",
    unused_prefixes=("vit.pooler.",),
    processors=("AutoImageProcessor", "AutoImageProcessor"),
    **IMAGE_HOOKS,
)

COUNTERPARTS = (VIT,)
