"""Hugging Face's Qwen3: `Qwen3ForCausalLM`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megaptm.families.llama.huggingface import ATTENTION, LLAMA
from megaptm.hub.tensor_rules import TensorRule

NORM_RULES = tuple(
    TensorRule(f"decoder.{{n}}.attention.{name}_norm.weight", (f"{ATTENTION}.{hf_name}_norm.weight",))
    for name, hf_name in (("query", "q"), ("key", "k"))
)


def _full_attention_layers(config: Mapping[str, Any]) -> list[str]:
    """Return the kinds of layers of a model without windows."""
    return ["full_attention"] * config["num_hidden_layers"]


QWEN3 = replace(
    LLAMA,
    family="qwen3",
    model="Qwen3ForCausalLM",
    fixed={
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "layer_types": _full_attention_layers,
    },
    optional_fields=frozenset({"layer_types"}),
    rules=(*LLAMA.rules, *NORM_RULES),
    special_ids={"bos_token_id": 151_643, "eos_token_id": 151_645},
)

COUNTERPARTS = (QWEN3,)
