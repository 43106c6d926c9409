"""Hugging Face's LED: `LEDForConditionalGeneration`; and `BartForConditionalGeneration`, from which LED is
initialized."""

from dataclasses import replace

from megaptm.families.bart.huggingface import BART
from megaptm.families.longformer.huggingface import WINDOW_HOOKS
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import QKV, Conversion, TensorRule, weight_and_bias

ENCODER = "led.encoder.layers.{n}.self_attn.longformer_self_attn"
ENCODER_RENAMES = {
    "self_attn.q_proj": "self_attn.longformer_self_attn.query",
    "self_attn.k_proj": "self_attn.longformer_self_attn.key",
    "self_attn.v_proj": "self_attn.longformer_self_attn.value",
    "self_attn.out_proj": "self_attn.output",
}
"""BART's names of the encoder's attention projections -> LED's."""


def _led_name(bart_name: str) -> str:
    name = bart_name.replace("model.", "led.", 1)
    if name.startswith("led.encoder."):
        for old, new in ENCODER_RENAMES.items():
            name = name.replace(old, new)
    return name


LED = Counterpart(
    family="led",
    model="LEDForConditionalGeneration",
    fields={
        **{field: name for field, name in BART.fields.items() if name != "context"},
        "max_encoder_position_embeddings": "context",
        "max_decoder_position_embeddings": "decoder.context",
        "attention_window": "window",
    },
    dropout_fields=BART.dropout_fields,
    fixed={name: value for name, value in BART.fixed.items() if name != "scale_embedding"},
    rules=(
        *(replace(rule, hf_names=tuple(map(_led_name, rule.hf_names))) for rule in BART.rules),
        *weight_and_bias(
            "encoder.{n}.attention.global_qkv",
            *(f"{ENCODER}.{name}_global" for name in ("query", "key", "value")),
            weight=QKV,
            bias=QKV,
        ),
    ),
    tied={_led_name(name): _led_name(source) for name, source in BART.tied.items()},
    prefix="led.",
    special_ids=BART.special_ids,
    zero_parameters=BART.zero_parameters,
    **WINDOW_HOOKS,
)

# Section 7 of the paper: the encoder's positions are repeated as needed, and global projections start as copies of the
# others, as in section 5. Both tables are without their two unused rows. The export direction is only used for shapes.
WITHOUT_UNUSED_ROWS = Conversion(lambda w, spec: [w.new_zeros(len(w) + 2, w.shape[1])], lambda ws, spec: ws[0][2:])
SELF_ATTENTION = "model.encoder.layers.{n}.self_attn"
FROM_BART = replace(
    BART,
    family="led",
    model_type="bart",
    import_only=True,
    fields=BART.fields | {"max_position_embeddings": "decoder.context"},
    rules=(
        *(rule for rule in BART.rules if rule.name != "embed.decoder_position.weight"),
        TensorRule("embed.decoder_position.weight", ("model.decoder.embed_positions.weight",), WITHOUT_UNUSED_ROWS),
        *weight_and_bias(
            "encoder.{n}.attention.global_qkv",
            *(f"{SELF_ATTENTION}.{name}_proj" for name in "qkv"),
            weight=QKV,
            bias=QKV,
        ),
    ),
    repeated_table="model.encoder.embed_positions.weight",
    repeated_from_row=2,
)

COUNTERPARTS = (LED, FROM_BART)
