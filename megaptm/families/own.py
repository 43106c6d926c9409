"""Validation of a user-defined family: its mistakes are reported before a model is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from pydantic import TypeAdapter, ValidationError

from megaptm.errors import UserError
from megaptm.spec import Family, LayerlessFamily, block_value_errors
from megaptm.spec.family import HeadInput

SIZE_FIELDS = ("layers", "width", "heads", "ffn")
"""Fields of a family's size that must be positive integers."""


def refuse_invalid_family(family: Family | LayerlessFamily, name: str) -> None:
    """Raise UserError if a user's family has an invalid or missing value; `name` is its name in the config."""
    kind = type(family)
    try:
        TypeAdapter(kind).validate_python({field.name: getattr(family, field.name) for field in fields(kind)})
    except ValidationError as error:
        first = error.errors()[0]
        raise _invalid_family_error(name, f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    if problem := next(_find_problems(family), None):
        raise _invalid_family_error(name, problem)


def _invalid_family_error(name: str, problem: str) -> UserError:
    return UserError(f"model.family: the family `{name}` is invalid ({problem}): correct its definition.")


def _find_problems(family: Family | LayerlessFamily) -> Iterator[str]:
    for field in fields(family):
        if is_dataclass(record := getattr(family, field.name)):
            yield from (error.removesuffix(".") for error in block_value_errors(record, f"{field.name}."))
    if not family.objectives:
        yield "objectives is empty"
    if family.tokenizer.vocabulary < 1:
        yield f"tokenizer.vocabulary is {family.tokenizer.vocabulary}"
    if isinstance(family, LayerlessFamily):
        if not family.sizes:
            yield "sizes is empty"
        return
    if not family.stacks:
        yield "stacks is empty"
    if family.context < 1:
        yield f"context is {family.context}"
    for stack, block in family.stacks.items():
        yield from (f"stacks.{stack}.{error.removesuffix('.')}" for error in block_value_errors(block))
    for label, size in family.sizes.items():
        for name in SIZE_FIELDS:
            value = getattr(size, name)
            if type(value) is not int or value < 1:
                yield f"sizes.{label}.{name} is {value!r}"
    for head, sources in family.reads.items():
        for source in (sources,) if isinstance(sources, str) else sources:
            layer = source.partition(".")[2]
            if (layer and not layer.isdecimal()) or HeadInput.parse(source).stack not in family.stacks:
                yield f"reads has {head}: {source}, which is neither a stack nor STACK.LAYER"
    for stack, record in family.sampled.items():
        if stack not in family.stacks or record.head not in family.reads:
            yield f"sampled has {stack}: {record.head}, but its keys must be stacks, and its heads in reads"
