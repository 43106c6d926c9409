"""Rules for the section `model`. Each rule gives one message with its key."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from pydantic import ValidationError

from megaptm.config.layer_rules import layer_model_errors
from megaptm.config.model import SHAPE_KEYS, model_spec
from megaptm.config.schema import ModelConfig
from megaptm.errors import nearest_name_advice
from megaptm.families import FAMILIES, LAYERLESS
from megaptm.models.embed_costs import token_costs
from megaptm.models.head_costs import HEADS
from megaptm.spec import Family, ModelSpec, Size, attention_options, can_change_direction, with_attention_options

ATTENTION_KEYS = ("head_width", "kv_heads", "band", "share")
"""Keys of the section `model` that only layers of a transformer use."""
UNUSED_VALUES = {"division": 1, "groups": 1, "cycle": 1, "memory": 0}
"""Values that keys of the section `model` have in the config of a run if they are unused."""


def layered_model_errors(model: ModelConfig) -> Iterator[str]:
    """Yield the errors of section `model` for a family with layers."""
    spec = model_spec(model)
    yield from _unused_key_errors(model, spec)
    if model.causal is not None and not can_change_direction(spec.family):
        yield (
            f"model.causal ({str(model.causal).lower()}) needs a family with one stack, attention to one side or both, "
            f"and a head of next or masked tokens, unlike {model.family}; remove it."
        )
    for key in ("z_loss", "label_smoothing") if spec.family.loss.negatives else ():
        if getattr(spec.family.loss, key):
            yield f"model.{key} needs the full softmax, and model.negatives samples it: set one to 0."
    yield from dict.fromkeys(f"model.{error}" for error in layer_model_errors(spec))
    for record in spec.family.inputs:
        yield from record.errors(spec)
    yield from _attention_errors(model, spec)
    yield from _stack_errors(model, spec)
    yield from _head_errors(model, spec)


def _unused_key_errors(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield an error for each key of the model's config that the family does not use."""
    configured = model.model_dump(mode="json", exclude_none=True)
    for key in {key for other in LAYERLESS.values() for key in other.size_fields} & {*configured} - {*SHAPE_KEYS}:
        readers = " or ".join(name for name, other in LAYERLESS.items() if key in other.size_fields)
        yield f"model.{key} is not used by {model_title(model)}: remove it, or use {readers}."
    for keys, reason in _unused_key_reasons(spec):
        for key in keys:
            if (value := configured.get(key)) is not None and value not in ([], {}, UNUSED_VALUES.get(key)):
                yield (
                    f"model.{key} ({json.dumps(value)}) is not used by {model_title(model)}, which {reason}; remove it."
                )


def _unused_key_reasons(spec: ModelSpec) -> Iterator[tuple[Collection[str], str]]:
    """Yield the keys of the model's config that a family does not use, and why."""
    family, blocks = spec.family, spec.family.stacks.values()
    if family.layer is not None:
        yield ATTENTION_KEYS, family.layer.reason
    if family.layer is not None and not family.layer.caches_states:
        yield ("memory",), "reads each text separately"
    tables = [other for other in FAMILIES.values() if isinstance(other, Family)]
    for kind in dict.fromkeys(type(record) for other in tables for record in other.inputs):
        if family.find_input(kind) is None:
            yield (*kind.size_keys, *kind.options), kind.absence
        else:
            yield kind.excluded_keys, kind.reason
    if len(family.token_inputs) > 1 or family.separate_tables or (tokens := token_costs(spec)) is None or tokens.module:
        yield ("word_vectors",), "has no single table of words"
    heads = [HEADS[name] for name in family.heads if name in HEADS]
    if not any(head.samples_negatives for head in heads):
        yield ("negatives",), "compares all tokens in its losses"
    if not all(head.next_token or (head is HEADS["mlm"] and family.output.transform is None) for head in heads):
        yield ("tied",), "has heads with the projection of their paper"
    if not family.init.uses_std:
        yield ("init_std",), "initializes each weight by its own rule"
    if not any(block.sharing.sublayers for block in blocks):
        yield ("groups", "cycle"), "shares no weights among layers (model.share)"


def _attention_errors(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of `model.attention`: options that are unknown, invalid, or not fit for the stack."""
    blocks = {name: block for name, block in spec.family.stacks.items() if block.layer is None}
    options = {name for block in blocks.values() for name in attention_options(block)}
    for name, value in model.attention.items():
        if name not in options:
            yield (
                f"model.attention.{name} is no option of the attention of {model_title(model)}; "
                f"{nearest_name_advice(name, options) if options else 'it has none'}"
            )
            continue
        try:
            for block in blocks.values():
                with_attention_options(block, {name: value})
        except ValidationError as error:
            yield f"model.attention.{name} ({json.dumps(value)}): {error.errors()[0]['msg'].lower()}."
    for stack, block in blocks.items():
        yield from dict.fromkeys(
            f"model.{error}"
            for record in block.attentions
            for error in record.errors(block, spec.size_of(stack))
            if error.startswith("attention.")
        )


def _stack_errors(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of the sizes of each stack."""
    if unknown := [name for name in model.stacks if name not in spec.family.stacks]:
        yield (
            f"model.stacks has {unknown[0]}, which is no stack of {spec.name}; "
            f"{nearest_name_advice(unknown[0], spec.family.stacks)}"
        )
    for name, own in model.stacks.items():
        if own.context is not None and name in spec.family.stacks and spec.family.stacks[name].position != "learned":
            yield f"model.stacks.{name}.context ({own.context}): the {name} has no learned positions; remove it."
    for stack, block in spec.family.stacks.items():
        layers = spec.size_of(stack).layers
        sharing = block.sharing
        if sharing.sublayers and sharing.groups * sharing.cycle > layers:
            yield (
                f"model.groups ({sharing.groups}) x model.cycle ({sharing.cycle}) must not exceed the {layers} layers "
                f"of the {stack} of {model_title(model)}: no weights would be shared."
            )


def _head_errors(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield an error unless the heads of attention divide the width, and key heads divide all heads."""
    title = model_title(model)
    for size, key in stack_sizes(spec):
        if size.head_width is None and size.width % size.heads:
            yield (
                f"{key}.heads ({size.heads}) must divide the width {size.width} of {title}; change it or set "
                f"{key}.head_width."
            )
        if size.heads % size.key_heads:
            yield f"{key}.kv_heads ({size.key_heads}) must divide the {size.heads} attention heads of {title}."


def stack_sizes(spec: ModelSpec) -> list[tuple[Size, str]]:
    """Return the sizes of a model's stacks, and their config sections."""
    own = [(size, f"model.stacks.{name}") for name, size in spec.size.stacks.items()]
    return own if len(own) == len(spec.family.stacks) else [(spec.size, "model"), *own]


def model_title(model: ModelConfig) -> str:
    """Return the title of a model: `bert/base`."""
    return f"{model.family}/{model.size}"
