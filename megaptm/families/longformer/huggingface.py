"""Hugging Face's Longformer: `LongformerForMaskedLM`; and `RobertaForMaskedLM`, from which it is initialized."""

from dataclasses import replace
from typing import Any

from megaptm.errors import UserError
from megaptm.families.bert.huggingface import encoder_rules
from megaptm.families.longformer.spec import WindowSpec
from megaptm.families.roberta.huggingface import ROBERTA
from megaptm.hub.counterpart import EVEN_NUMBERS, Counterpart, is_list
from megaptm.hub.folder import CONFIG
from megaptm.hub.tensor_rules import QKV, VOCABULARY, TensorRule, weight_and_bias
from megaptm.spec import ModelSpec


def _window_values(spec: ModelSpec) -> dict[str, Any]:
    """Return `window` -> the window of each layer of Longformer's first stack."""
    stack, block = next(iter(spec.family.stacks.items()))
    records = (block.attention_at(layer) for layer in range(spec.size_of(stack).layers))
    return {"window": [record.window for record in records if isinstance(record, WindowSpec)]}


def _check_windows(counterpart: Counterpart, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a Longformer config. Raise UserError for a list of windows that does not have one per
    layer."""
    windows, layers = values["window"], values["layers" if "layers" in values else "encoder.layers"]
    if is_list(windows) and len(windows) != layers:
        raise UserError(
            f"{CONFIG}: attention_window has {len(windows)} values for {layers} layers; give one, or one per layer."
        )
    return values


WINDOW_HOOKS: dict[str, Any] = {
    "checks": {"window": EVEN_NUMBERS},
    "further_values": _window_values,
    "read_values": _check_windows,
}
"""Hooks of counterparts whose first stack has a window, or a list with one for each layer."""
ATTENTION = "longformer.encoder.layer.{n}.attention.self"
LONGFORMER = Counterpart(
    family="longformer",
    model="LongformerForMaskedLM",
    fields={**ROBERTA.fields, "attention_window": "window"},
    fixed={"hidden_act": "gelu", "type_vocab_size": 1, "tie_word_embeddings": True},
    rules=(
        *encoder_rules("longformer"),
        *weight_and_bias(
            "encoder.{n}.attention.global_qkv",
            *(f"{ATTENTION}.{name}_global" for name in ("query", "key", "value")),
            weight=QKV,
            bias=QKV,
        ),
        *weight_and_bias("head.mlm.transform", "lm_head.dense"),
        *weight_and_bias("head.mlm.norm", "lm_head.layer_norm"),
        TensorRule("head.mlm.vocabulary.bias", ("lm_head.bias",), VOCABULARY),
    ),
    tied={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    prefix="longformer.",
    special_ids=ROBERTA.special_ids,
    positions_after_pad=True,
    unused_prefixes=("longformer.pooler.",),
    **WINDOW_HOOKS,
)

# Section 5 of the paper: positions are repeated as needed, and global projections start as copies of the others.
SELF_ATTENTION = "roberta.encoder.layer.{n}.attention.self"
FROM_ROBERTA = replace(
    ROBERTA,
    family="longformer",
    model_type="roberta",
    import_only=True,
    fields={field: name for field, name in ROBERTA.fields.items() if name != "positions"},
    rules=(
        *ROBERTA.rules,
        *weight_and_bias(
            "encoder.{n}.attention.global_qkv",
            *(f"{SELF_ATTENTION}.{name}" for name in ("query", "key", "value")),
            weight=QKV,
            bias=QKV,
        ),
    ),
    repeated_table="roberta.embeddings.position_embeddings.weight",
    repeated_from_row=2,
)

COUNTERPARTS = (LONGFORMER, FROM_ROBERTA)
