"""Which layers and how many parameters lie on which rank."""

# T tensor ranks

from __future__ import annotations

from dataclasses import dataclass

from megaptm.bricks import heads
from megaptm.bricks import held as layers_held
from megaptm.bricks.layer import embedding_tables, final_norm, kinds, sublayers
from megaptm.plan.work import Work
from megaptm.spec import Block, ModelSpec


@dataclass(frozen=True)
class Chunk:
    """A contiguous run of the chain of layers, as `models.model.Part`."""

    layers: dict[str, range]
    """Stack -> which of its layers."""
    first: bool
    last: bool
    finals: tuple[str, ...]
    """Stacks whose last layer, and so whose closing norm, is here."""


@dataclass(frozen=True)
class Parameters:
    """Of one rank, rows that pad the vocabulary among them."""

    trained: int
    frozen: int = 0
    """Weights without a loss: no gradient, no moments."""
    largest: int = 0
    """Of the largest matrix: what its gradient needs for a moment."""


def chunks(spec: ModelSpec, number: int) -> list[Chunk]:
    """The chain of layers cut into `number` runs; a remainder goes to the middle, away from embedding and heads."""
    stacks, layers = spec.family.stacks, spec.size.layers
    total = layers * len(stacks)
    share, more = divmod(total, number)
    middle = (number - more) // 2
    sizes = [share + (middle <= place < middle + more) for place in range(number)]
    cut, start = [], 0
    for place, size in enumerate(sizes):
        stop = start + size
        spans = {
            name: range(min(max(start - index * layers, 0), layers), min(max(stop - index * layers, 0), layers))
            for index, name in enumerate(stacks)
        }
        cut.append(
            Chunk(
                layers=spans,
                first=place == 0,
                last=place == number - 1,
                finals=tuple(name for name, span in spans.items() if layers - 1 in span),
            )
        )
        start = stop
    return cut


def stages(work: Work) -> list[list[Chunk]]:
    """Stage -> its chunks: chunk c of stage p is part c * pipeline + p, as in `parallel.stage.build_stages`."""
    layout = work.layout
    cut = chunks(work.spec, layout.pipeline * layout.virtual)
    return [[cut[c * layout.pipeline + p] for c in range(layout.virtual)] for p in range(layout.pipeline)]


def parameters(work: Work, held: list[Chunk]) -> Parameters:
    """What one tensor rank of a stage with these chunks holds."""
    spec, tensor = work.spec, work.layout.tensor
    trained, frozen, tables, largest = 0, 0, 0, 0
    for chunk in held:
        for name, layers in chunk.layers.items():
            block = spec.family.stacks[name]
            counted = layers_held(block, spec.size, layers)
            trained += counted.divided // tensor + counted.whole
            largest = max([largest, *(matrix for kind in kinds(block, layers) for matrix in _matrices(kind, spec))])
        trained += sum(final_norm(spec.family.stacks[name], spec.size) for name in chunk.finals)
        if chunk.first:
            trained += table_size(spec) // tensor + embedding_tables(spec)
        elif chunk.last and spec.family.tied:
            trained += table_size(spec) // tensor
        projects = any(head.projects for head in heads(spec).values())
        if chunk.first or (chunk.last and projects):
            tables = table_size(spec) // tensor
        if chunk.last:
            for name, head in heads(spec).items():
                if work.trained_heads is None or name in work.trained_heads:
                    trained += head.held(tensor)
                else:
                    frozen += head.held(tensor)
    return Parameters(trained, frozen, max(tables, largest // tensor))


def table_size(spec: ModelSpec) -> int:
    """Elements of the token table, padding among them."""
    return spec.padded_vocabulary * spec.size.table_width


def _matrices(block: Block, spec: ModelSpec) -> list[int]:
    return [one.weights for sub in sublayers(block, spec.size) for one in sub.brick.maps.values()]
