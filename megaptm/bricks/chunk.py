"""The chain of layers, the stacks' end to end, cut into the chunks that pipeline stages hold."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class ModelChunk:
    """A contiguous run of the chain of layers."""

    layers: dict[str, range]
    """Stack -> which of its layers, by their number in it."""
    first: bool
    """Holds the embedding."""
    last: bool
    """Holds the heads, and the token table they are tied to."""
    finals: tuple[str, ...] = ()
    """Stacks whose last layer, and so whose closing norm, is here."""


def chunks(spec: ModelSpec, number: int) -> list[ModelChunk]:
    """The chain cut into so many; a remainder goes to the middle, away from embedding and heads."""
    share, more = divmod(spec.layers, number)
    middle = (number - more) // 2
    cut, start = [], 0
    for place in range(number):
        stop = start + share + (middle <= place < middle + more)
        spans, offset = {}, 0
        for name in spec.family.stacks:
            layers = spec.size_of(name).layers
            spans[name] = range(min(max(start - offset, 0), layers), min(max(stop - offset, 0), layers))
            offset += layers
        finals = tuple(name for name, span in spans.items() if spec.size_of(name).layers - 1 in span)
        cut.append(ModelChunk(spans, first=place == 0, last=place == number - 1, finals=finals))
        start = stop
    return cut
