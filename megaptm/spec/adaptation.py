"""Initial weights from a model of another kind: an encoder from a decoder or back, or both stacks of an encoder-decoder
from one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from megaptm.spec.attention import SlidingWindowSpec
from megaptm.spec.block import Block
from megaptm.spec.model import ModelSpec
from megaptm.spec.size import Size

HEADS = ("lm", "mlm")
"""Heads that predict tokens. A head of one kind may start from a head of the other."""
TOKEN_TABLE = "embed.token.weight"
SIZES = ("layers", "width", "heads", "ffn", "key_width", "key_heads")
ANY_WINDOW = 2


def find_source(name: str, available: Collection[str]) -> str | None:
    """Return the parameter of another model from which a parameter starts, or None: the initial value is random.

    It has the same name, except that a stack may start from the only stack of the other model, cross-attention from
    self-attention, and a head or token table that the other model lacks from the one that it has. Cross-attention may
    start from joint projections of queries, keys and values (`attention.qkv`), of which it takes a part.
    """
    return next((candidate for candidate in _candidates(name, available) if candidate in available), None)


def _candidates(name: str, available: Collection[str]) -> Iterator[str]:
    stacks = {other.partition(".")[0] for other in available} - {"embed", "head"}
    stack = name.partition(".")[0]
    if stack not in {*stacks, "embed", "head"} and len(stacks) == 1:
        name = f"{next(iter(stacks))}.{name.partition('.')[2]}"
    yield name
    # The projections of cross-attention, and its norms: `cross_norm`, `cross_output_norm`.
    own = re.sub(r"\.cross(?=[._])", ".attention", name, count=1)
    yield own
    yield re.sub(r"\.(query|kv)\.", ".qkv.", own)
    if match := re.fullmatch(r"head\.(\w+)\.(.+)", name):
        yield from (f"head.{other}.{match[2]}" for other in HEADS if match[1] in HEADS)
    if re.fullmatch(r"embed\.\w+_token\.weight|head\.\w+\.table\.weight", name):
        yield TOKEN_TABLE


def takes_part(name: str, source: str) -> slice | None:
    """Return which of queries, keys and values of its source a parameter takes; None: the source is of the same
    kind."""
    if ".cross." not in name or ".qkv." not in source:
        return None
    return slice(0, 1) if ".query." in name else slice(1, 3)


def find_difference(spec: ModelSpec, source: ModelSpec) -> tuple[str, Any, Any] | None:
    """Compare a model with the other model from which its weights start. Return the first property that must be equal
    and is not: its name, its value and the other value. None if the models are compatible.

    The direction of attention, cross-attention, windows, dropout and the numbers of rotary positions may differ.
    """
    for name, own, other in _properties(spec, source):
        if own != other:
            return name, own, other
    return None


def _properties(spec: ModelSpec, source: ModelSpec) -> Iterator[tuple[str, Any, Any]]:
    yield "vocabulary", spec.vocabulary, source.vocabulary
    yield "embedding.scale", spec.family.embedding.scale, source.family.embedding.scale
    yield "output.scale", spec.family.output.scale, source.family.output.scale
    if spec.family.output.tied:
        yield "tied", True, source.family.output.tied
    for stack, block in spec.family.stacks.items():
        named = stack if stack in source.family.stacks else next(iter(source.family.stacks))
        if stack not in source.family.stacks and len(source.family.stacks) > 1:
            yield "stacks", stack, " and ".join(source.family.stacks)
        size, other_size = spec.size_of(stack), source.size_of(named)
        for field in SIZES:
            yield f"{field} of the {stack}", getattr(size, field), getattr(other_size, field)
        yield (
            f"norm of the sum of embeddings of the {stack}",
            spec.family.embedding.has_norm(stack),
            source.family.embedding.has_norm(named),
        )
        other_block = source.family.stacks[named]
        if block.position == "learned":
            yield f"context of the {stack}", spec.context_of(stack), source.context_of(named)
        for layer in range(size.layers):
            own, other = _comparable(block.at(layer), size), _comparable(other_block.at(layer), other_size)
            position, other_position = (each.position.removesuffix("-causal") for each in (own, other))
            yield f"position of the {stack}", position, other_position
            for field in ("attention", "norm", "ffn", "residual", "layer", "sharing"):
                yield f"{field} of layer {layer} of the {stack}", getattr(own, field), getattr(other, field)


def _comparable(block: Block, size: Size) -> Block:
    """Return the block of a layer without the properties in which a model may differ from its source."""
    record = block.attentions[0]
    free: dict[str, Any] = {"scale_width": record.scale_width or size.key_width, "dropout": True}
    free |= {"rope_base": 1.0, "rope_factor": 1.0, "rope_original_context": None}
    if isinstance(record, SlidingWindowSpec):
        free["window"] = ANY_WINDOW
    return replace(block, attention=replace(record, **free), ffn=replace(block.ffn, dropout=False))
