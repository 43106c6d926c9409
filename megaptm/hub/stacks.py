"""Conversion of families whose stacks are separate models at Hugging Face (ELECTRA, DeBERTa-v3): split and join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from megaptm.errors import UserError
from megaptm.spec import Family, ModelSpec, change

Value = TypeVar("Value")
TOKENS = "embed.token.weight"


def alone(spec: ModelSpec, weights: Mapping[str, Tensor], stack: str) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Return one stack as a separate model, with the shared tables or its own: a gradient-disentangled table is the sum
    of the shared one and the difference."""
    family, size = spec.family.alone(stack), change(spec.size_of(stack), stacks={})
    if size.width != spec.size.table_width:
        size = change(size, embedding=spec.size.table_width)
    own = (f"{stack}.", *(f"head.{head}." for head in family.heads))
    kept = {name: weight for name, weight in weights.items() if name.startswith(own)}
    for name, weight in weights.items():
        if (alone_name := _name_alone(spec.family, stack, name)) is not None:
            kept[alone_name] = weight
    if (difference := weights.get(_difference(stack))) is not None:
        kept[TOKENS] = weights[TOKENS] + difference
    return replace(spec, family=family, size=size), kept


def together(family: Family, parts: Mapping[str, ModelSpec], where: str) -> ModelSpec:
    """Return the model of these stacks. Raise UserError if they differ in shared settings."""
    main = parts[next(stack for stack in family.stacks if stack in family.drawn)]
    for stack, part in parts.items():
        for name in ("vocabulary", "context", "dropout"):
            if getattr(part, name) != getattr(main, name):
                raise UserError(f"{where}: its {stack} has another {name} than the rest; give models trained together.")
        if part.size.table_width != main.size.table_width:
            raise UserError(f"{where}: its {stack} has wider or narrower tables; give models trained together.")
        if _attention_dropout(part) != _attention_dropout(main):
            raise UserError(f"{where}: its {stack} has another dropout than the rest; give models trained together.")
    eps, dropout = main.family.first_block.norm.eps, _attention_dropout(main)
    stacks = {
        name: change(block, norm={"eps": eps}, attention={"dropout": dropout}) for name, block in family.stacks.items()
    }
    sizes = {stack: change(part.size, embedding=None) for stack, part in parts.items()}
    others = {stack: size for stack, size in sizes.items() if size != change(main.size, embedding=None)}
    return replace(main, family=change(family, stacks=stacks), size=change(main.size, stacks=others))


def _attention_dropout(part: ModelSpec) -> bool | float:
    return part.family.first_block.attentions[0].dropout


def renamed(family: Family, parts: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """Return the values by name in the full model; for shared parameters, that of the last stack."""
    return {
        _name_in_whole(family, stack, name): value for stack, theirs in parts.items() for name, value in theirs.items()
    }


def joined(family: Family, parts: Mapping[str, Mapping[str, Tensor]], where: str) -> dict[str, Tensor]:
    """Return the weights of the full model, with the differences of gradient-disentangled tables. Raise UserError if
    shared weights differ by more than the precision of a half-precision format."""
    weights = renamed(family, parts)
    for stack, theirs in parts.items():
        for name, weight in theirs.items():
            if not weights[_name_in_whole(family, stack, name)].allclose(weight, rtol=1e-2, atol=1e-3):
                raise UserError(
                    f"{where}: {name} of its {stack} is another than that of the rest, with which it is one in a "
                    f"{family.name}; give models trained together."
                )
    differences = {name: weights[name] - weights[TOKENS] for name in map(_difference, family.gradient_disentangled)}
    return weights | differences


def _name_alone(family: Family, stack: str, name: str) -> str | None:
    """Return the name of an embedding parameter in a separate stack; None if the stack does not have it."""
    widen, own = _widen(family, stack), f"embed.{family.tables[stack]}"
    if name.startswith(widen):
        return name.replace(widen, "embed.widen.")
    if not name.startswith("embed.") or "widen." in name or name == _difference(stack):
        return None
    if stack in family.gradient_disentangled:
        return name.replace(own, "embed.") if name.startswith(own) else None
    return (
        None
        if name.startswith(tuple(f"embed.{family.tables[other]}" for other in family.gradient_disentangled))
        else name
    )


def _name_in_whole(family: Family, stack: str, name: str) -> str:
    if name.startswith("embed.widen."):
        return name.replace("embed.widen.", _widen(family, stack))
    if stack in family.gradient_disentangled and name.startswith("embed."):
        return _difference(stack) if name == TOKENS else name.replace("embed.", f"embed.{family.tables[stack]}")
    return name


def _difference(stack: str) -> str:
    """Return the name of the difference table of a gradient-disentangled stack in the full model."""
    return f"embed.{stack}_difference.weight"


def _widen(family: Family, stack: str) -> str:
    """Return the name prefix of a stack's projection from the tables in the full model."""
    return f"embed.{stack}_widen." if stack in family.drawn else f"embed.{family.prefixes[stack]}widen."
