"""Division of a model's layers (of all stacks, one stack after another) into chunks for pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from megaptm.errors import UserError
from megaptm.models.head_costs import head_costs
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class ModelChunk:
    """Chunk of a model for a pipeline stage: consecutive layers, counted from the first stack to the last."""

    layers: dict[str, range]
    """Indices of the layers of each stack in this chunk of the model."""
    first: bool
    last: bool
    """Whether the chunk has the heads that read full stacks, and the token table to which they are tied."""
    embedded_stacks: tuple[str, ...] = ()
    """Stacks that the chunk embeds: all in the first chunk, except a stack that also reads tokens sampled from a
    head."""
    final_stacks: tuple[str, ...] = ()
    """Stacks whose last layer, and final norm, is in this chunk of the model."""
    heads: tuple[str, ...] = ()
    """Heads in this chunk of the model: a head is in the chunk of the layers that it reads. Heads that read full stacks
    are in the last chunk."""


def _even_layers(layers: int, number: int) -> list[int]:
    """Return the number of layers of each of `number` chunks of a model. Middle chunks get the remainder, because
    embedding and heads are in others."""
    share, more = divmod(layers, number)
    middle = (number - more) // 2
    return [share + (middle <= index < middle + more) for index in range(number)]


def model_chunks(spec: ModelSpec, number: int, layers: Sequence[int] | None = None) -> list[ModelChunk]:
    """Return `number` chunks of a model. `layers`: number of layers of each; None: as equal as possible. The last chunk
    may have none, only heads (`allows_heads_alone`)."""
    counts = _even_layers(spec.layers, number) if layers is None else layers
    cut = []
    for index, (start, stop) in enumerate(pairwise(accumulate(counts, initial=0))):
        spans, offset = {}, 0
        for name in spec.family.stacks:
            depth = spec.size_of(name).layers
            spans[name] = range(min(max(start - offset, 0), depth), min(max(stop - offset, 0), depth))
            offset += depth
        final_stacks = tuple(name for name, span in spans.items() if spec.size_of(name).layers - 1 in span)
        last = index == number - 1
        heads = tuple(head for head in spec.family.heads if _is_here(spec, head, spans, final_stacks, last))
        embedded_stacks = tuple(
            name for name in spec.family.stacks if _embeds_stack(spec, name, final_stacks, first=index == 0)
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
    head_costs(spec)  # raises errors of heads first, which would otherwise be reported as errors of `number`
    if lost := [head for head in spec.family.heads if not any(head in chunk.heads for chunk in cut)]:
        raise UserError(
            f"{spec.name}: head {lost[0]} reads layers that lie in several of {number} pipeline chunks: lower "
            "layout.pipeline or layout.virtual, or set layout.layers_per_stage."
        )
    return cut


def sampling_heads(spec: ModelSpec) -> set[str]:
    """Return the heads from which the input of another stack is sampled."""
    return {record.head for record in spec.family.sampled.values()}


def allows_heads_alone(spec: ModelSpec) -> bool:
    """Whether the last chunk of a model may have heads and no layers. A head must read a full stack. No stack may have
    several residual streams, whose output is wider than the tensor between chunks."""
    if any(spec.output_width(name) > spec.size_of(name).width for name in spec.family.stacks):
        return False
    sampling = sampling_heads(spec)
    return any(
        layer is None for head in spec.family.heads if head not in sampling for _, layer in spec.head_inputs(head)
    )


def _embeds_stack(spec: ModelSpec, stack: str, final_stacks: tuple[str, ...], *, first: bool) -> bool:
    return spec.family.sampling_stack(stack) in final_stacks if stack in spec.family.sampled else first


def _is_here(spec: ModelSpec, head: str, layers: dict[str, range], final_stacks: tuple[str, ...], last: bool) -> bool:
    """Whether a chunk with these layers has everything that a head of the model reads."""
    if head in sampling_heads(spec):
        return spec.head_inputs(head)[0].stack in final_stacks
    return all(last if layer is None else layer in layers.get(stack, ()) for stack, layer in spec.head_inputs(head))
