"""A family whose stacks are models of their own elsewhere (ELECTRA): taken apart, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from megaptm.errors import UserError
from megaptm.spec import Family, ModelSpec, change

Value = TypeVar("Value")


def alone(spec: ModelSpec, weights: Mapping[str, Tensor], stack: str) -> tuple[ModelSpec, dict[str, Tensor]]:
    """One stack as a model by itself, with the tables that all share."""
    family, size = spec.family.alone(stack), change(spec.size_of(stack), stacks={})
    if size.width != spec.size.table_width:
        size = change(size, embedding=spec.size.table_width)
    widen, own = _widen(spec.family, stack), (f"{stack}.", *(f"head.{head}." for head in family.heads))
    kept = {
        name.replace(widen, "embed.widen."): weight
        for name, weight in weights.items()
        if name.startswith((widen, *own)) or (name.startswith("embed.") and "widen." not in name)
    }
    return replace(spec, family=family, size=size), kept


def together(family: Family, parts: Mapping[str, ModelSpec], where: str) -> ModelSpec:
    """The model of which these are the stacks; an error where they differ in what they share."""
    main = parts[next(stack for stack in family.stacks if stack in family.drawn)]
    for stack, part in parts.items():
        for name in ("vocabulary", "context", "dropout"):
            if getattr(part, name) != getattr(main, name):
                raise UserError(f"{where}: its {stack} has another {name} than the rest; give models trained together.")
        if part.size.table_width != main.size.table_width:
            raise UserError(f"{where}: its {stack} has wider or narrower tables; give models trained together.")
    eps = main.family.first_block.norm_eps
    stacks = {name: change(block, norm_eps=eps) for name, block in family.stacks.items()}
    sizes = {stack: change(part.size, embedding=None) for stack, part in parts.items() if part is not main}
    return replace(main, family=change(family, stacks=stacks), size=change(main.size, stacks=sizes))


def renamed(family: Family, parts: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """What is known of parameters of each stack by itself, by their names in the whole; of a shared one, the last's."""
    return {
        name.replace("embed.widen.", _widen(family, stack)): value
        for stack, theirs in parts.items()
        for name, value in theirs.items()
    }


def _widen(family: Family, stack: str) -> str:
    """What the names of its map from the tables begin with, in the whole."""
    return f"embed.{stack}_widen." if stack in family.drawn else f"embed.{family.prefixes[stack]}widen."
