"""Hugging Face's Gemma 2 and 3: `Gemma2ForCausalLM` and `Gemma3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from megaptm.errors import UserError
from megaptm.families.gemma import GEMMA3 as GEMMA3_FAMILY
from megaptm.families.llama.huggingface import ATTENTION_RULES, FFN_RULES, LAYER, LLAMA, MODEL_RULES
from megaptm.families.mistral.huggingface import single_value
from megaptm.families.qwen3.huggingface import NORM_RULES as HEAD_NORM_RULES
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.rope import ROPE_BY_KIND, rope_options, rope_parameters, rope_problem
from megaptm.hub.tensor_rules import TensorRule
from megaptm.spec import Family, ModelSpec, SlidingWindowSpec

LOCAL, GLOBAL = "sliding_attention", "full_attention"
NORM_RULES = tuple(
    TensorRule(f"decoder.{{n}}.{name}.weight", (f"{LAYER}.{hf_name}.weight",))
    for name, hf_name in {
        "attention_norm": "input_layernorm",
        "attention_output_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "ffn_output_norm": "post_feedforward_layernorm",
    }.items()
)


def _kinds(family: Family) -> list[str]:
    """Return the kinds of layers that take turns in a family."""
    return [LOCAL if isinstance(record, SlidingWindowSpec) else GLOBAL for record in family.last_block.attentions]


def layer_types(turns: list[str], section: str = "") -> Callable[[Mapping[str, Any]], list[str]]:
    """Return a function of a config that returns the kinds of all layers, from those that take turns."""
    return lambda config: [turns[layer % len(turns)] for layer in range(config[f"{section}num_hidden_layers"])]


def _further_values(spec: ModelSpec) -> dict[str, Any]:
    return {name: single_value(spec, name) for name in ("window", "scale_width")}


def _rope_by_kind(spec: ModelSpec) -> dict[str, Any]:
    """Return the parameters of rotary positions of each kind of layer, which all layers of a kind must share."""
    by_kind: dict[str, Any] = {}
    for record, kind in zip(spec.family.last_block.attentions, _kinds(spec.family), strict=True):
        if by_kind.setdefault(kind, record.rope) != record.rope:
            raise UserError(
                "model.attention has rotary parameters that differ among layers with a window, or among those without: "
                f"{spec.name} at Hugging Face has one set for each kind. Use `megaptm.load(RUN)` in Python."
            )
    return {ROPE_BY_KIND: {kind: rope_parameters(rope) for kind, rope in by_kind.items()}}


def _are_by_kind(value: Any) -> bool:
    return isinstance(value, Mapping) and {*value} == {LOCAL, GLOBAL} and not any(map(rope_problem, value.values()))


def _read_by_kind(counterpart: Counterpart, values: dict[str, Any]) -> dict[str, Any]:
    """Add to the values of a config the parameters of rotary positions: for each option a tuple, which layers use in
    turn."""
    turns = [rope_options(values[ROPE_BY_KIND][kind]) for kind in _kinds(GEMMA3_FAMILY)]
    return values | {name: tuple(options[name] for options in turns) for name in turns[0]}


GEMMA2 = replace(
    LLAMA,
    family="gemma2",
    model="Gemma2ForCausalLM",
    fields={
        **{field: name for field, name in LLAMA.fields.items() if name != "tied"},
        "sliding_window": "window",
        "query_pre_attn_scalar": "scale_width",
    },
    further_values=_further_values,
    fixed={
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
        "layer_types": layer_types([LOCAL, GLOBAL]),
    },
    optional_fields=frozenset({"layer_types"}),
    rules=(*MODEL_RULES, *NORM_RULES, *ATTENTION_RULES, *FFN_RULES),
    special_ids={"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
)
GEMMA3 = replace(
    GEMMA2,
    family="gemma3",
    model="Gemma3ForCausalLM",
    model_type="gemma3_text",
    fields={**GEMMA2.fields, "rope_parameters": ROPE_BY_KIND},
    checks={
        **LLAMA.checks,
        ROPE_BY_KIND: ("rope_theta of rope_type default or linear for each kind of layer", _are_by_kind),
    },
    further_values=lambda spec: _further_values(spec) | _rope_by_kind(spec),
    read_values=_read_by_kind,
    fixed={
        **GEMMA2.fixed,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "layer_types": layer_types(_kinds(GEMMA3_FAMILY)),
        "sliding_window_pattern": len(_kinds(GEMMA3_FAMILY)),
    },
    # Files of earlier releases have the last one instead of `layer_types`.
    optional_fields=GEMMA2.optional_fields | {"sliding_window_pattern"},
    earlier_fields=("rope_local_base_freq",),
    rules=(*GEMMA2.rules, *HEAD_NORM_RULES),
)

COUNTERPARTS = (GEMMA2, GEMMA3)
