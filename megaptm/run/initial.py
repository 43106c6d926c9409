"""Run that provides the initial weights (`train.init_from`): locate and check it. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from megaptm.config import Config, resolve_model, resolve_spec
from megaptm.errors import UserError
from megaptm.resilience.events import last_saved_step
from megaptm.run.other_run import OtherRun
from megaptm.spec import Block, ModelSpec, Size
from megaptm.spec.attention import SlidingWindowSpec
from megaptm.tokenizers import Tokenizer

SIZES = ("layers", "width", "heads", "ffn", "key_width", "key_heads")
ANY_WINDOW = 2


def initial_run(config: Config) -> OtherRun | None:
    """Return the run that provides the initial weights, or None."""
    if config.train.init_from is None:
        return None
    return OtherRun("train.init_from", Path(config.train.init_from), "train.init_step", config.train.init_step)


def check_initial_run(config: Config, tokenizer: Tokenizer | None) -> None:
    """Raise `UserError` if a new run cannot start from `train.init_from`.

    Reasons: it has no checkpoint, its model differs in more than `find_difference` allows, or its tokenizer differs
    from `tokenizer`, which is None if no corpus has one.
    """
    if (initial := initial_run(config)) is None or last_saved_step(Path(config.run)) > 0:
        return
    initial.check()
    spec = resolve_model(config)
    if difference := initial.find_difference(spec):
        source = resolve_spec(initial.config)
        if isinstance(source, ModelSpec) and spec.name != source.name:
            difference = find_difference(spec, source)
    if difference is not None:
        name, expected, actual = difference
        raise UserError(
            f"train.init_from ({initial.folder}) has another model: its {name} is {actual}, the config's is "
            f"{expected}; set model to that shape, or leave train.init_from out."
        )
    if tokenizer is not None:
        initial.check_tokenizer(tokenizer)


def find_difference(spec: ModelSpec, source: ModelSpec) -> tuple[str, Any, Any] | None:
    """Compare a model with the other model from which its weights start. Return the first property that must be equal
    and is not: its name, its value and the other value. None if the models are compatible.

    The direction of attention, cross-attention, windows, dropout and the parameters of rotary positions may differ.
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
