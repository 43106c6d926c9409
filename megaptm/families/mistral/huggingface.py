"""Hugging Face's Mistral: `MistralForCausalLM`. Later versions have no window: they are imported as Llama."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from megaptm.errors import UserError
from megaptm.families.llama.huggingface import LLAMA
from megaptm.hub.counterpart import MAX_VALUE, is_count
from megaptm.spec import Block, ModelSpec, attention_options


def single_value(spec: ModelSpec, option: str) -> Any:
    """Return an option of attention that all layers with the option share. Raise `UserError` if they differ."""
    return single_value_of(spec, spec.family.last_block, option)


def single_value_of(spec: ModelSpec, block: Block, option: str) -> Any:
    """Return an option of attention that all layers of a block share. Raise `UserError` if they differ."""
    value = attention_options(block)[option]
    if isinstance(value, tuple):
        raise UserError(
            f"model.attention.{option} differs among layers ({', '.join(map(str, value))}), but {spec.name} at Hugging "
            "Face has one value. Use `megaptm.load(RUN)` in Python."
        )
    return value


def _contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    if config["sliding_window"] is None:
        yield "sliding_window is null (mistral has a number of positions)"


MISTRAL = replace(
    LLAMA,
    family="mistral",
    model="MistralForCausalLM",
    fields={**LLAMA.fields, "sliding_window": "window"},
    checks={
        **LLAMA.checks,
        "window": (f"an integer from 1 to {MAX_VALUE:,}, or null", lambda value: value is None or is_count(value)),
    },
    fixed={"hidden_act": "silu"},
    contradictions=_contradictions,
    further_values=lambda spec: {"window": single_value(spec, "window")},
)
WITHOUT_WINDOW = replace(
    LLAMA,
    model="MistralForCausalLM",
    model_type="mistral",
    import_only=True,
    fixed={"hidden_act": "silu", "sliding_window": None},
)

COUNTERPARTS = (MISTRAL, WITHOUT_WINDOW)
