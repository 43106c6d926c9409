"""Which layers and how many parameters lie on which rank."""

# D width, A = heads x key width, F feed-forward features, T tensor ranks

from __future__ import annotations

from dataclasses import dataclass

from megaptm.plan.work import Work
from megaptm.spec import BIAS_BUCKETS, Block, ModelSpec


@dataclass(frozen=True)
class Chunk:
    """A contiguous run of the chain of layers, as `models.model.Part`."""

    layers: dict[str, int]
    """Stack -> how many of its layers."""
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
            name: (min(max(start - index * layers, 0), layers), min(max(stop - index * layers, 0), layers))
            for index, name in enumerate(stacks)
        }
        cut.append(
            Chunk(
                layers={name: high - low for name, (low, high) in spans.items()},
                first=place == 0,
                last=place == number - 1,
                finals=tuple(name for name, (low, high) in spans.items() if low < high == layers),
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
    trained, frozen, tables = 0, 0, 0
    for chunk in held:
        for name, layers in chunk.layers.items():
            trained += _layers(getattr(spec.family, name), spec, layers, tensor)
        trained += sum(_norm(spec, name) for name in chunk.finals if getattr(spec.family, name).norm == "pre")
        if chunk.first:
            trained += _inputs(spec, tensor)
        elif chunk.last and spec.family.tied:
            trained += table_size(spec) // tensor
        if chunk.first or (chunk.last and ("lm" in spec.family.heads or "mlm" in spec.family.heads)):
            tables = table_size(spec) // tensor
        if chunk.last:
            learns, rests = _heads(work)
            trained, frozen = trained + learns, frozen + rests
    size = spec.size
    return Parameters(trained, frozen, max(tables, size.width * max(3 * _inner(spec), size.ffn) // tensor))


def table_size(spec: ModelSpec) -> int:
    """Elements of the token table, padding among them."""
    return spec.padded_vocabulary * spec.size.width


def layer_weights(block: Block, spec: ModelSpec) -> int:
    """Elements of the matrices of one layer, which tensor ranks divide."""
    size, inner = spec.size, _inner(spec)
    attention = 4 * size.width * inner
    up = 2 if block.gated else 1
    return attention * (2 if block.cross else 1) + (up + 1) * size.width * size.ffn


def _inner(spec: ModelSpec) -> int:
    return spec.size.heads * spec.size.key_width


def _layers(block: Block, spec: ModelSpec, layers: int, tensor: int) -> int:
    size, inner, sublayers = spec.size, _inner(spec), 3 if block.cross else 2
    up = 2 if block.gated else 1
    divided = layer_weights(block, spec)
    whole = sublayers * size.width * (2 if block.normalizer == "layer" else 1)
    if block.bias:
        divided += 3 * inner * (sublayers - 1) + up * size.ffn
        whole += sublayers * size.width
    table = BIAS_BUCKETS * size.heads // tensor if block.bias_table != "none" and layers else 0
    return layers * (divided // tensor + whole) + table


def _norm(spec: ModelSpec, stack: str) -> int:
    return spec.size.width * (2 if getattr(spec.family, stack).normalizer == "layer" else 1)


def _inputs(spec: ModelSpec, tensor: int) -> int:
    family, width = spec.family, spec.size.width
    total = table_size(spec) // tensor
    total += (spec.context if "position" in family.inputs else 0) * width
    total += (family.segments if "segment" in family.inputs else 0) * width
    return total + (_norm(spec, family.stacks[0]) if family.embedding_norm else 0)


def _heads(work: Work) -> tuple[int, int]:
    """Parameters of the heads with a loss, and of those without."""
    spec, tensor = work.spec, work.layout.tensor
    family, width = spec.family, spec.size.width
    sizes = {
        "lm": 0 if family.tied else table_size(spec) // tensor,
        "mlm": width * width + width + _norm(spec, family.stacks[-1]) + spec.padded_vocabulary // tensor,
        "next-sentence": width * width + width + 2 * width + 2,
    }
    trained = family.heads if work.trained_heads is None else work.trained_heads
    return (
        sum(sizes[head] for head in family.heads if head in trained),
        sum(sizes[head] for head in family.heads if head not in trained),
    )
