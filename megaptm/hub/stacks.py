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


def split_stack(spec: ModelSpec, weights: Mapping[str, Tensor], stack: str) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Return one stack of a family as a separate Hugging Face model, with the common tables or its own. Its
    own token table is added to the common one (`InputSpec.stack`)."""
    family, size = spec.family.with_only_stack(stack), change(spec.size_of(stack), stacks={})
    if size.width != spec.size.table_width:
        size = change(size, embedding=spec.size.table_width)
    own = (f"{stack}.", *(f"head.{head}." for head in family.heads))
    split = {name: weight for name, weight in weights.items() if name.startswith(own)}
    for name, weight in weights.items():
        if (split_name := _split_name(spec.family, stack, name)) is not None:
            split[split_name] = weight
    if (table := weights.get(_own_table(spec.family, stack))) is not None:
        split[TOKENS] = weights[TOKENS] + table
    return replace(spec, family=family, size=size), split


def join_specs(family: Family, parts: Mapping[str, ModelSpec], where: str) -> ModelSpec:
    """Return the spec of the full model of stacks that are separate Hugging Face models. Raise UserError if they differ
    in shared settings."""
    main = parts[next(stack for stack in family.stacks if stack in family.sampled)]
    for stack, part in parts.items():
        other_settings = _shared_settings(part)
        for name, value in _shared_settings(main).items():
            if other_settings[name] != value:
                raise UserError(
                    f"{where}: its {stack} has {name} {other_settings[name]}, but the main model has {value}; give "
                    "models trained together."
                )
    block = main.family.first_block
    eps, dropout = block.norm.eps, block.attentions[0].dropout
    stacks = {
        name: change(block, norm={"eps": eps}, attention={"dropout": dropout}) for name, block in family.stacks.items()
    }
    sizes = {stack: change(part.size, embedding=None) for stack, part in parts.items()}
    different_sizes = {stack: size for stack, size in sizes.items() if size != change(main.size, embedding=None)}
    return replace(main, family=change(family, stacks=stacks), size=change(main.size, stacks=different_sizes))


def _shared_settings(part: ModelSpec) -> dict[str, object]:
    return {
        "vocabulary": part.vocabulary,
        "context": part.context,
        "dropout": part.dropout,
        "embedding width": part.size.table_width,
        "attention dropout": part.family.first_block.attentions[0].dropout,
    }


def rename_to_full(family: Family, parts: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """Rename the parameters of separate stacks to those of the full model; for shared parameters, the value is that of
    the last stack."""
    return {_full_name(family, stack, name): value for stack, values in parts.items() for name, value in values.items()}


def join_weights(family: Family, parts: Mapping[str, Mapping[str, Tensor]], where: str) -> dict[str, Tensor]:
    """Return the weights of the full model from those of separate stacks, with the own tables of
    stacks. Raise UserError if shared weights differ by more than the precision of a half-precision format."""
    weights = rename_to_full(family, parts)
    for stack, stack_weights in parts.items():
        for name, weight in stack_weights.items():
            if not weights[_full_name(family, stack, name)].allclose(weight, rtol=1e-2, atol=1e-3):
                raise UserError(
                    f"{where}: {name} of its {stack} differs from the other model's, but {family.name} has one "
                    "parameter for both; give models trained together."
                )
    tables = [_own_table(family, stack) for stack in family.own_tables]
    return weights | {name: weights[name] - weights[TOKENS] for name in tables}


def _split_name(family: Family, stack: str, name: str) -> str | None:
    """Return the name of an embedding parameter in a separate stack; None if the stack does not have it."""
    widen, own = _projection_prefix(family, stack), f"embed.{family.tables[stack]}"
    if name.startswith(widen):
        return name.replace(widen, "embed.widen.")
    if not name.startswith("embed.") or "widen." in name or name == _own_table(family, stack):
        return None
    if stack in family.own_tables:
        return name.replace(own, "embed.") if name.startswith(own) else None
    return None if name.startswith(tuple(f"embed.{family.tables[other]}" for other in family.own_tables)) else name


def _full_name(family: Family, stack: str, name: str) -> str:
    if name.startswith("embed.widen."):
        return name.replace("embed.widen.", _projection_prefix(family, stack))
    if stack in family.own_tables and name.startswith("embed."):
        return _own_table(family, stack) if name == TOKENS else name.replace("embed.", f"embed.{family.tables[stack]}")
    return name


def _own_table(family: Family, stack: str) -> str:
    """Return the name of a stack's own token table in the full model; empty if it has none."""
    return next((f"embed.{record.name}.weight" for record in family.inputs if record.stack == stack), "")


def _projection_prefix(family: Family, stack: str) -> str:
    """Return the name prefix of a stack's projection from the tables in the full model."""
    return f"embed.{stack}_widen." if stack in family.sampled else f"embed.{family.prefixes[stack]}widen."
