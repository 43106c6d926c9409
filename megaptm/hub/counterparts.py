"""Hugging Face counterparts of families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from megaptm.errors import UserError
from megaptm.families import contributions
from megaptm.hub.counterpart import FFN_RATIO, Counterpart, ImportOption
from megaptm.hub.rope import ROPE_BY_KIND, ROPE_PARAMETERS
from megaptm.spec import ROPE_OPTIONS, AttentionSpec, Block, Family, ModelSpec, Size, attention_options, change

COUNTERPARTS: tuple[Counterpart, ...] = tuple(chain.from_iterable(contributions("huggingface", "COUNTERPARTS")))
"""Counterparts of all families that have a `huggingface.py`."""
# Fields that sizes or training recipes may change within one architecture.
FREE_FIELDS = ("name", "paper", "tokenizer", "context", "loss", "init", "dropout", "objectives", "sizes")

# The same for blocks, as arguments of `change`.
FREE_BLOCK_VALUES: dict[str, Any] = {"norm": {"eps": 0.0}, "sharing": {"groups": 1, "cycle": 1}}
UNEXPORTED_OPTIONS = {"seed", "dropout"}
"""Options of attention that any exported model may have. The class of `transformers` samples random blocks in its own
way."""


def find_counterpart(spec: ModelSpec) -> Counterpart:
    """Return the Hugging Face architecture that computes the same as this model. Raise UserError for a model that no
    class of `transformers` computes."""
    counterpart = _match_shape(spec.family)
    if counterpart is None:
        known = _list_known("family", exported=True)
        raise UserError(
            f"{spec.name} has no counterpart at Hugging Face, unlike {known}. Use `megaptm.load(RUN)` in Python, or "
            "register a counterpart (docs/add-a-family.md, section 7)."
        )
    counterpart.further_values(spec)
    _check_patterns(counterpart, spec)
    sizes = {stack: spec.size_of(stack) for stack in spec.family.stacks}
    for size in sizes.values():
        _check_size(counterpart, size)
    _check_stacks(counterpart, sizes)
    return counterpart


def hugging_face_models(family: Family) -> tuple[str, ...]:
    """Return the class in `transformers` that computes the same as a family; one per stack if stacks are separate
    models there; empty if there is none."""
    parts = [family.with_only_stack(stack) for stack in reversed(family.stacks)] if family.sampled else [family]
    counterparts = [_match_shape(part) for part in parts]
    return tuple(counterpart.model for counterpart in counterparts if counterpart) if all(counterparts) else ()


def _match_shape(family: Family) -> Counterpart | None:
    # Families of equal shape have separate models there: prefer the family's own.
    exported = (counterpart for counterpart in COUNTERPARTS if not counterpart.import_only)
    for counterpart in sorted(exported, key=lambda counterpart: counterpart.family != family.name):
        table = counterpart.family_table
        # Heads that an objective added are not exported.
        own_heads = change(family, heads=tuple(head for head in family.heads if head in table.heads))
        if _comparable_shape(own_heads, counterpart) == _comparable_shape(table, counterpart):
            return counterpart
    return None


def _check_size(counterpart: Counterpart, size: Size) -> None:
    """Raise UserError if config.json derives a value of a stack from another one, and the model has a different one."""
    configurable = {name.rpartition(".")[2] for name in counterpart.fields.values()}
    if "head_width" not in configurable and size.heads * size.key_width != size.width:
        raise UserError(
            f"{counterpart.model} needs heads x head_width = width, but {size.heads} x {size.key_width} is not "
            f"{size.width}: this size cannot be exported."
        )
    if "ffn" not in configurable and size.ffn != FFN_RATIO * size.width:
        raise UserError(
            f"{counterpart.model} needs ffn = {FFN_RATIO} x width, but ffn is {size.ffn} and width {size.width}: "
            "this size cannot be exported."
        )
    if "kv_heads" not in configurable and size.key_heads != size.heads:
        raise UserError(
            f"{counterpart.model} needs as many key-value heads as query heads, but has {size.key_heads} and "
            f"{size.heads}: this size cannot be exported."
        )


def _check_patterns(counterpart: Counterpart, spec: ModelSpec) -> None:
    """Raise UserError if the model has another value than the counterpart for an attention option that config.json has
    no field for."""
    if counterpart.read_attention is not None:
        return
    names = {*counterpart.fields.values()}
    if names & {ROPE_PARAMETERS, ROPE_BY_KIND}:
        names |= {*ROPE_OPTIONS}
    numbers = {record.rope for block in spec.family.stacks.values() for record in block.attentions}
    if ROPE_PARAMETERS in names and len(numbers) > 1:
        raise UserError(
            f"model.attention: {', '.join(ROPE_OPTIONS)} differ among layers, but {counterpart.model} has one value of "
            "each for all. Use `megaptm.load(RUN)` in Python."
        )
    for block, own in zip(spec.family.stacks.values(), counterpart.family_table.stacks.values(), strict=True):
        expected = attention_options(own)
        for name, value in attention_options(block).items():
            if name not in names | UNEXPORTED_OPTIONS and value != expected[name]:
                raise UserError(
                    f"model.attention.{name} is {value}, but {counterpart.model} always has {expected[name]}, so the "
                    "model cannot be exported. Use `megaptm.load(RUN)` in Python."
                )


def _check_stacks(counterpart: Counterpart, sizes: Mapping[str, Size]) -> None:
    """Raise UserError if stacks differ in a value for which config.json has only one field."""
    (first, first_size), *other_stacks = sizes.items()
    configurable = {*counterpart.fields.values()}
    for stack, size in other_stacks:
        for name in ("layers", "width", "heads", "ffn", *({"head_width"} & configurable)):
            attribute = "key_width" if name == "head_width" else name
            expected, value = getattr(first_size, attribute), getattr(size, attribute)
            if expected != value and f"{stack}.{name}" not in configurable:
                raise UserError(
                    f"model.stacks.{stack}.{name} ({value}): {counterpart.model} has one {name} for all stacks, and "
                    f"that of the {first} is {expected}. Sizes with different values cannot be exported."
                )


def find_counterparts(model_type: object, family: object = None) -> tuple[Counterpart, ...]:
    """Return the Hugging Face counterparts of a `model_type`, optionally only those of one family."""
    same_type = tuple(counterpart for counterpart in COUNTERPARTS if counterpart.config_model_type == model_type)
    if not same_type:
        raise UserError(
            f"model_type {model_type!r} cannot be imported: it must be one of {_list_known('config_model_type')}."
        )
    if selected := tuple(counterpart for counterpart in same_type if family in (None, counterpart.family)):
        return selected
    families = ", ".join(dict.fromkeys(counterpart.family for counterpart in same_type))
    raise UserError(f"model.family ({family}): a model of type {model_type!r} can be imported as {families}.")


def import_options() -> dict[str, ImportOption]:
    """Return the options of imports from Hugging Face, by key of `Size.inputs`."""
    return dict(chain.from_iterable(counterpart.import_options.items() for counterpart in COUNTERPARTS))


def is_first_of_its_type(counterpart: Counterpart) -> bool:
    """Whether a Hugging Face config that names no family is read as this counterpart's family."""
    return find_counterparts(counterpart.config_model_type)[0].family == counterpart.family


def _list_known(attribute: str, *, exported: bool = False) -> str:
    counterparts = (counterpart for counterpart in COUNTERPARTS if not (exported and counterpart.import_only))
    return ", ".join(dict.fromkeys(getattr(counterpart, attribute) for counterpart in counterparts))


def _comparable_shape(family: Family, counterpart: Counterpart) -> dict[str, Any]:
    """Return everything that determines a model's computation, to compare families with Hugging Face counterparts.
    Numbers of the config and mask decoders, which are used only in pre-training, are excluded."""
    table = {f.name: getattr(family, f.name) for f in fields(family) if f.name not in FREE_FIELDS}
    stacks = {
        name: change(block, **FREE_BLOCK_VALUES, attention=_attention_shape(block, counterpart))
        for name, block in family.stacks.items()
    }
    if "tied" in counterpart.fields.values():
        table["output"] = replace(family.output, tied=True)
    inputs = tuple(replace(record, **dict.fromkeys(record.options.values())) for record in family.inputs)
    return {**table, "stacks": stacks, "inputs": inputs}


def _attention_shape(block: Block, counterpart: Counterpart) -> object:
    """Return the kinds of attention that layers use in turn, without the values that a Hugging Face config
    determines."""
    records = [_without_options(record, counterpart) for record in block.attentions]
    if counterpart.read_attention is not None and {*block.kinds} <= {*counterpart.family_table.first_block.kinds}:
        return "by layer", frozenset((record.bias, record.scale, record.dropout) for record in records)
    return records[0] if len({*records}) == 1 else tuple(records)


def _without_options(record: AttentionSpec, counterpart: Counterpart) -> AttentionSpec:
    options: dict[str, Any] = {field.name: field.default for field in fields(record) if field.name in record.options}
    if "attention_dropout" not in counterpart.fields.values():
        del options["dropout"]
    return replace(record.for_encoding(), **options)
