"""Conversion between model sizes and fields of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from megaptm.errors import UserError
from megaptm.hub.counterpart import FFN_RATIO, LEGACY_FIELDS, MAX_VALUE, Counterpart, is_count, is_number
from megaptm.hub.folder import CONFIG
from megaptm.hub.rope import ROPE_PARAMETERS, rope_options, rope_parameters, rope_problem
from megaptm.spec import ModelSpec, Size, attention_options, change, with_attention_options

STACK_VALUES = ("layers", "width", "heads", "ffn")
HEAD_VALUES = {"head_width": "key_width", "kv_heads": "key_heads"}
"""Name of a value -> field of `Size`."""
SHARING_VALUES = ("groups", "cycle")


def megaptm_values(spec: ModelSpec, counterpart: Counterpart) -> dict[str, Any]:
    """Return megaptm's values by the names that `Counterpart.fields` uses."""
    size, block = spec.size_of(next(iter(spec.family.stacks))), spec.family.first_block
    return {
        "layers": size.layers,
        "width": size.width,
        "heads": size.heads,
        "head_width": size.key_width,
        "kv_heads": size.key_heads,
        "ffn": size.ffn,
        "embedding": spec.size.table_width,
        "tied": spec.family.output.tied,
        "vocabulary": spec.vocabulary,
        "context": spec.context,
        "positions": spec.positions,
        "norm_eps": block.norm.eps,
        **{name: getattr(block.sharing, name) for name in SHARING_VALUES},
        **{key: getattr(record, name) for record in spec.family.inputs for key, name in record.options.items()},
        **attention_options(block),
        ROPE_PARAMETERS: rope_parameters(block.attentions[0].rope),
        **counterpart.further_values(spec),
        "dropout": spec.dropout,
        "attention_dropout": block.attentions[0].dropout_rate(spec.dropout),
        **{
            f"{stack}.{name}": getattr(spec.size_of(stack), name)
            for stack in spec.family.stacks
            for name in STACK_VALUES
        },
        **{
            f"{stack}.{name}": getattr(spec.size_of(stack), field)
            for stack in spec.family.stacks
            for name, field in HEAD_VALUES.items()
        },
        **{f"{stack}.context": spec.context_of(stack) for stack in spec.family.stacks},
    }


def config_values(counterpart: Counterpart, spec: ModelSpec) -> dict[str, Any]:
    """Return the fields of the Hugging Face config of this model."""
    own_values = megaptm_values(spec, counterpart)
    fields = {**counterpart.fields, **counterpart.dropout_fields}
    values = {field: own_values[name] for field, name in fields.items()}
    # The config class derives these itself.
    return values | {
        name: value for name, value in counterpart.fixed.items() if name not in counterpart.optional_fields
    }


def nest_sections(counterpart: Counterpart, values: Mapping[str, Any]) -> dict[str, Any]:
    """Nest the sections of a Hugging Face config: return fields such as `text_config.hidden_size` as nested
    dictionaries."""
    config: dict[str, Any] = {}
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        (config.setdefault(section, {}) if section in counterpart.sections else config)[field] = value
    return config


def flatten_sections(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the sections of a Hugging Face config to fields; the inverse of `nest_sections`."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if name in counterpart.sections:
            if not isinstance(value, Mapping):
                raise UserError(f"{CONFIG}: {name} must be an object; restore the file.")
            fields |= {f"{name}.{field}": field_value for field, field_value in value.items()}
        else:
            fields[name] = value
    return fields


def check_field_value(counterpart: Counterpart, field: str, value: Any) -> Any:
    """Return the value of a field of a Hugging Face config, one of `Counterpart.fields`. Raise UserError if no model
    can have it."""
    match counterpart.fields[field]:
        case name if name in counterpart.checks:
            expected, check = counterpart.checks[name]
            is_valid = check(value)
        case "dropout" | "attention_dropout":
            expected, is_valid = "a number from 0 to below 1", is_number(value) and 0 <= value < 1
        case "tied":
            expected, is_valid = "true or false", type(value) is bool
        case name if name == ROPE_PARAMETERS:
            if problem := rope_problem(value):
                raise UserError(f"{CONFIG}: {field}{problem}.")
            return value
        case "norm_eps":
            expected, is_valid = "a number between 0 and 1", is_number(value) and 0 < value < 1
        case _:
            expected, is_valid = f"an integer from 1 to {MAX_VALUE:,}", is_count(value)
    if not is_valid:
        raise UserError(
            f"{CONFIG}: {field} is {str(value)[: 200 if isinstance(value, Mapping) else 40]!r}; it must be {expected}."
        )
    return value


def find_mismatches(counterpart: Counterpart, config: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, str]:
    """Return config.json field -> reason why its value cannot be imported. `config`: with defaults; `file`: the
    fields in config.json."""
    mismatches = {}
    for name, fixed in counterpart.all_fixed_fields.items():
        if name not in config and (name in counterpart.optional_fields or name in LEGACY_FIELDS):
            continue
        value = counterpart.normalizers[name](config) if name in counterpart.normalizers else config.get(name)
        expected = fixed(config) if callable(fixed) else fixed
        # Absent counts as equal to 0 and false.
        if (value or None) != (expected or None):
            field, other = f"{name} is {_shorten_value(config.get(name))}", counterpart.determined_by.get(name)
            if name not in file and other is not None:
                field = f"{other} is {_shorten_value(file[other]) if other in file else 'absent'}, so that {field}"
            mismatches[name] = f"{field} ({counterpart.family} has {_shorten_value(expected)})"
    for own_name, fields in _values_by_name(counterpart, config).items():
        if len({*map(str, fields.values())}) > 1:
            values = " and ".join(f"{name} is {_shorten_value(value)}" for name, value in fields.items())
            reason = f"{values} ({counterpart.family} has one value for these, model.{own_name})"
            mismatches |= dict.fromkeys(fields, reason)
    for reason in counterpart.contradictions({**config, **file}):
        mismatches[reason] = reason
    return mismatches


def _values_by_name(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the config.json fields and values for each of megaptm's names."""
    values: dict[str, dict[str, Any]] = {}
    for field, name in counterpart.fields.items():
        if field in config:  # some classes use fields without declaring them
            values.setdefault(name, {})[field] = check_field_value(counterpart, field, config[field])
    return values


def _shorten_value(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."


def refuse_hf_config(reasons: Iterable[str]) -> NoReturn:
    """Refuse a Hugging Face config: raise one UserError with all reasons."""
    raise UserError(f"{CONFIG}: {'; '.join(dict.fromkeys(reasons))}; such a model cannot be imported.")


def build_spec(counterpart: Counterpart, config: Mapping[str, Any], file: Mapping[str, Any]) -> ModelSpec:
    """Return the spec that a Hugging Face config describes. Raise UserError with all fields that cannot be imported."""
    if mismatches := find_mismatches(counterpart, config, file):
        refuse_hf_config(mismatches.values())
    values = {name: next(iter(fields.values())) for name, fields in _values_by_name(counterpart, config).items()}
    values = counterpart.read_values(counterpart, values)
    if "width" in values and values.get("ffn") is None:
        values["ffn"] = FFN_RATIO * values["width"]
    if ROPE_PARAMETERS in values:
        values |= rope_options(values[ROPE_PARAMETERS])
    family = counterpart.family_table
    size = _parse_size(counterpart, [*family.stacks], values)
    family = family.for_size(size)
    dropout = values.get("dropout", family.dropout)
    options = {name: value for name, value in values.items() if name != "dropout"}
    if "attention_dropout" in values and values["attention_dropout"] != dropout:
        options["dropout"] = values["attention_dropout"]
    differences: dict[str, Any] = {"norm": {"eps": values["norm_eps"]}} if "norm_eps" in values else {}
    differences |= {"sharing": {name: values[name] for name in SHARING_VALUES if name in values}}
    stacks = {
        name: with_attention_options(change(block, **differences), options) for name, block in family.stacks.items()
    }
    if counterpart.read_attention is not None:
        read = counterpart.read_attention
        stacks = {name: change(block, attention=read(block, values)) for name, block in stacks.items()}
    check_pad_token(counterpart, config.get("pad_token_id"), f"{CONFIG}: ")
    context = (
        values["positions"] - family.embedding.first_position
        if "positions" in values
        else values.get("context", family.context)
    )
    if context < 1:
        raise UserError(
            f"{CONFIG}: {counterpart.field_name('positions')} is {values['positions']}, but texts start at position "
            f"{family.embedding.first_position}; restore it."
        )
    inputs = tuple(
        replace(record, **{name: values[key] for key, name in record.options.items() if key in values})
        for record in family.inputs
    )
    return ModelSpec(
        family=change(family, stacks=stacks, inputs=inputs),
        size=size,
        vocabulary=values["vocabulary"],
        context=context,
        dropout=dropout,
    )


def check_pad_token(counterpart: Counterpart, pad: int | None, where: str = "") -> None:
    """Raise UserError if the pad token of a Hugging Face config has another id, which would shift all positions."""
    expected = counterpart.family_table.embedding.first_position - 1
    if counterpart.positions_after_pad and pad is not None and pad != expected:
        raise UserError(
            f"{where}pad_token_id is {pad}, but {counterpart.family} has {expected}, and {counterpart.model} counts "
            f"positions from it: use a model and a tokenizer with the special tokens of {counterpart.family}."
        )


def _parse_size(counterpart: Counterpart, stacks: list[str], values: Mapping[str, Any]) -> Size:
    def stack_size(stack: str) -> Size:
        def stack_value(name: str) -> int:
            value: int = values[f"{stack}.{name}"] if f"{stack}.{name}" in values else values[name]
            return value

        def head_value(name: str) -> int | None:
            value: int | None = values.get(f"{stack}.{name}", values.get(name))
            return value

        def name_of(name: str) -> str:
            return counterpart.field_name(f"{stack}.{name}", name)

        layers, width, heads, ffn = map(stack_value, STACK_VALUES)
        head_width, kv_heads, embedding = head_value("head_width"), head_value("kv_heads"), values.get("embedding")
        if head_width is None and width % heads:
            raise UserError(
                f"{CONFIG}: {name_of('heads')} ({heads}) does not divide {name_of('width')} ({width}); restore it."
            )
        if kv_heads is not None and heads % kv_heads:
            raise UserError(
                f"{CONFIG}: {name_of('kv_heads')} ({kv_heads}) does not divide {name_of('heads')} ({heads}); restore "
                "it."
            )
        return Size(
            layers=layers,
            width=width,
            heads=heads,
            ffn=ffn,
            head_width=head_width,
            kv_heads=None if kv_heads == heads else kv_heads,
            inputs=inputs if stack == stacks[0] else {},
            context=None if (own := values.get(f"{stack}.context")) == values.get("context") else own,
            embedding=None if embedding == width else embedding,
            tied=None if values.get("tied") == counterpart.family_table.output.tied else values.get("tied"),
        )

    # Values that no Hugging Face config has are those of the paper unless others are given.
    default = next(iter(counterpart.family_table.sizes.values()), None)
    known = values if default is None else {**default.inputs, **values}
    input_keys = [key for record in counterpart.family_table.inputs for key in record.size_keys]
    inputs = {key: known[key] for key in input_keys if key in known}
    first, *other_sizes = map(stack_size, stacks)
    return change(
        first, stacks={name: size for name, size in zip(stacks[1:], other_sizes, strict=True) if size != first}
    )
