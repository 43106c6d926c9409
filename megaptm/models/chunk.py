"""Division of the chain of layers (all stacks, end to end) into chunks for pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.errors import UserError
from megaptm.models.head_costs import head_costs
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class ModelChunk:
    """Chunk of a model for a pipeline stage: consecutive layers of the chain."""

    layers: dict[str, range]
    """Stack -> indices of its layers in this chunk."""
    first: bool
    last: bool
    """Whether the chunk has the heads that read whole stacks, and the token table they are tied to."""
    embedded_stacks: tuple[str, ...] = ()
    """Stacks that are embedded here: all in the first chunk, except a stack that also reads tokens sampled from a
    head."""
    final_stacks: tuple[str, ...] = ()
    """Stacks whose last layer, and final norm, is in this chunk."""
    heads: tuple[str, ...] = ()
    """Heads in this chunk: next to the layers that they read; heads that read whole stacks are in the last chunk."""


def chunks(spec: ModelSpec, number: int) -> list[ModelChunk]:
    """Divide the chain of layers into `number` chunks for pipeline stages. Middle chunks get the remainder, away from
    embedding and heads."""
    share, more = divmod(spec.layers, number)
    middle = (number - more) // 2
    cut, start = [], 0
    for index in range(number):
        stop = start + share + (middle <= index < middle + more)
        spans, offset = {}, 0
        for name in spec.family.stacks:
            layers = spec.size_of(name).layers
            spans[name] = range(min(max(start - offset, 0), layers), min(max(stop - offset, 0), layers))
            offset += layers
        final_stacks = tuple(name for name, span in spans.items() if spec.size_of(name).layers - 1 in span)
        last = index == number - 1
        heads = tuple(head for head in spec.family.heads if _is_here(spec, head, spans, final_stacks, last))
        embedded_stacks = tuple(
            name for name in spec.family.stacks if _embeds(spec, name, final_stacks, first=index == 0)
        )
        cut.append(
            ModelChunk(
                spans,
                first=index == 0,
                last=last,
                embedded_stacks=embedded_stacks,
                final_stacks=final_stacks,
                heads=heads,
            )
        )
        start = stop
    head_costs(spec)  # raises errors of heads first, which would otherwise be reported as errors of `number`
    if lost := [head for head in spec.family.heads if not any(head in chunk.heads for chunk in cut)]:
        raise UserError(
            f"{spec.name}: head {lost[0]} reads layers that lie in several of {number} pipeline chunks: lower "
            "layout.pipeline or layout.virtual."
        )
    return cut


def _embeds(spec: ModelSpec, stack: str, final_stacks: tuple[str, ...], *, first: bool) -> bool:
    return spec.family.source(stack) in final_stacks if stack in spec.family.sampled else first


def _is_here(spec: ModelSpec, head: str, layers: dict[str, range], final_stacks: tuple[str, ...], last: bool) -> bool:
    """Whether a chunk with these layers has everything that a head of the model reads."""
    if head in {record.head for record in spec.family.sampled.values()}:
        return spec.head_inputs(head)[0].stack in final_stacks
    return all(last if layer is None else layer in layers.get(stack, ()) for stack, layer in spec.head_inputs(head))
