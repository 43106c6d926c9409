"""Validation of a family that the user defines: its mistakes are reported before a model is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from pydantic import TypeAdapter, ValidationError

from megaptm.errors import UserError
from megaptm.families.words import WordFamily
from megaptm.spec import Family, Size, value_errors
from megaptm.spec.family import Reading

NUMBERS = ("layers", "width", "heads", "ffn")
"""Fields of a size that must be positive integers."""


def refuse_broken(family: Family | WordFamily, name: str) -> None:
    """Raise UserError if a family has an invalid or missing value; `name` is its name in the config."""
    kind = Family if isinstance(family, Family) else WordFamily
    said = {one.name: getattr(family, one.name) for one in fields(kind)}
    try:
        TypeAdapter(kind).validate_python(said)
    except ValidationError as error:
        first = error.errors()[0]
        raise _broken(name, f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    if what := next(_mistakes(family), None):
        raise _broken(name, what)


def _broken(name: str, what: str) -> UserError:
    return UserError(f"model.family: the table `{name}` cannot be read ({what}): fix it.")


def _mistakes(family: Family | WordFamily) -> Iterator[str]:
    if not family.objectives:
        yield "objectives is empty"
    if family.vocabulary < 1:
        yield f"vocabulary is {family.vocabulary}"
    if isinstance(family, WordFamily):
        if not family.sizes:
            yield "sizes is empty"
        return
    if not family.stacks:
        yield "stacks is empty"
    if family.context < 1:
        yield f"context is {family.context}"
    for stack, block in family.stacks.items():
        yield from (f"stacks.{stack}.{error.removesuffix('.')}" for error in value_errors(block))
    for label, size in family.sizes.items():
        yield from _of_size(f"sizes.{label}", size)
    yield from _readers(family.reads, family)
    for stack, head in family.drawn.items():
        if stack not in family.stacks or head not in family.reads:
            yield f"drawn has {stack}: {head}, and these must be a stack and a head that reads says of"


def _of_size(where: str, size: Size) -> Iterator[str]:
    for number in NUMBERS:
        value = getattr(size, number)
        if type(value) is not int or value < 1:
            yield f"{where}.{number} is {value!r}"


def _readers(reads: Mapping[str, str | tuple[str, ...]], family: Family) -> Iterator[str]:
    for head, read in reads.items():
        for word in (read,) if isinstance(read, str) else read:
            layer = word.partition(".")[2]
            if (layer and not layer.isdecimal()) or Reading.parse(word).stack not in family.stacks:
                yield f"reads has {head}: {word}, which is no stack or layer of one"
