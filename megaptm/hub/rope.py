"""Parameters of rotary positions in a Hugging Face config: the field `rope_parameters`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megaptm.hub.counterpart import is_number
from megaptm.spec import ROPE_TURNS, RopeParameters

ROPE_PARAMETERS = "rope_parameters"
"""Field of a config, and name of its value in `Counterpart.fields`."""
ROPE_BY_KIND = "rope_by_kind"
"""The same for a field with a mapping for each kind of layer."""
LOW, HIGH = ROPE_TURNS
TYPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": None},
    "llama3": {
        "factor": None,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": None,
    },
}
"""Supported `rope_type` -> its further fields, with the value if there is only one. `linear` stretches all wavelengths,
`llama3` those above a length."""


def rope_parameters(rope: RopeParameters) -> dict[str, Any]:
    """Return the field `rope_parameters` of a config."""
    name = "default" if rope.factor == 1.0 else "linear" if rope.original_context is None else "llama3"
    numbers = {"factor": rope.factor, "original_max_position_embeddings": rope.original_context}
    further = {field: numbers.get(field, value) for field, value in TYPES[name].items()}
    return {"rope_type": name, "rope_theta": rope.base, **further}


def rope_problem(value: Any) -> str:
    """Return why `AttentionSpec.rope` cannot represent a field `rope_parameters`: the text after its name in a message,
    or "" if it can."""
    if not isinstance(value, Mapping):
        return f" is {value!r}; it must be a mapping with rope_type and rope_theta"
    name = value.get("rope_type")
    if not isinstance(name, str) or name not in TYPES:
        return f".rope_type is {str(name)[:40]!r}; it must be one of {', '.join(TYPES)}"
    numbers: dict[str, Any] = {"partial_rotary_factor": 1.0, **value}
    for field, expected in {"rope_theta": None, **TYPES[name], "partial_rotary_factor": 1.0}.items():
        number: Any = numbers.get(field)
        if not is_number(number) or not (number >= 1 if expected is None else number == expected):
            needed = "a number of at least 1" if expected is None else f"{expected:g}"
            return f".{field} is {str(number)[:40]}; it must be {needed}"
    return ""


def rope_options(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of attention (`ROPE_OPTIONS`) that a field `rope_parameters` describes."""
    known = {name: value[name] for name in TYPES[value["rope_type"]]}
    context = known.get("original_max_position_embeddings")
    return {
        "rope_base": float(value["rope_theta"]),
        "rope_factor": float(known.get("factor", 1.0)),
        "rope_original_context": None if context is None else int(context),
    }
