"""A transformer layer and a stack of them, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from megaptm.bricks.brick import Brick, Map, brick_of
from megaptm.bricks.characters import character_maps
from megaptm.bricks.patches import patch_maps
from megaptm.bricks.regions import region_maps, region_norms
from megaptm.spec import BIAS_BUCKETS, Block, Family, ModelSpec, Size

NORMS = {"layer": 2, "layer-no-shift": 1, "layer-fixed": 0, "rms": 1}
"""Words of `Block.norm` -> parameters for each feature."""


@dataclass(frozen=True)
class SubLayer:
    """A brick with the norm and the residual sum around it."""

    name: str
    """`attention`, `cross` or `ffn`; or `recurrent`."""
    word: str
    """Of its slot."""
    brick: Brick
    norm: int
    """Parameters of its norm."""
    has_norm: bool = True
    """Whether it has one of its own."""

    @property
    def divided(self) -> int:
        """Parameters that tensor ranks divide."""
        return self.brick.biases + sum(one.divided for one in self.brick.maps.values())

    @property
    def whole(self) -> int:
        """Parameters that each tensor rank has."""
        return self.norm + sum(one.whole for one in self.brick.maps.values())


@lru_cache(maxsize=256)
def sublayers(block: Block, size: Size, memory: int | None = None) -> tuple[SubLayer, ...]:
    """Those of one layer, of a block whose slots have one word each; `memory`: the width of what it attends to."""
    if block.is_recurrent:
        brick = brick_of("recurrent", block.recurrent, block, size, memory)
        return (SubLayer("recurrent", block.recurrent, brick, 0, False),)
    slots = {"attention": block.attention, **({"cross": "dot"} if block.cross else {}), "ffn": block.ffn}
    made = []
    for slot, word in slots.items():
        assert isinstance(word, str), "ask for the block `at` a layer"
        has_norm = block.norm_place != "parallel" or slot == "attention"
        norm = norm_parameters(block, size.width) if has_norm else 0
        made.append(SubLayer(slot, word, brick_of(slot, word, block, size, memory), norm, has_norm))
    return tuple(made)


@lru_cache(maxsize=4096)
def kinds(block: Block, layers: range) -> dict[Block, int]:
    """The blocks that some layers of a stack have, and how many have each."""
    return dict(Counter(block.at(layer) for layer in layers))


def runs(block: Block, size: Size, layers: range) -> dict[Block, int]:
    """The blocks that some layers of a stack have, and how often a pass goes through each: a mask decoder's twice."""
    found = dict(kinds(block, layers))
    if block.last_layer == "mask-decoder" and size.layers - 1 in layers:
        found[block.at(size.layers - 1)] += 1
    return found


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of some layers of a stack."""

    divided: int
    """That tensor ranks divide."""
    whole: int
    """That each tensor rank has."""


@lru_cache(maxsize=4096)
def layer_parameters(block: Block, size: Size, layers: range, memory: int | None = None) -> LayerParameters:
    """Of some layers of a stack: what they share once, and what the stack has besides; no last norm."""
    subs = [*own_sublayers(block, size, layers, memory)]
    beside = [*maps_beside(block, size, layers)]
    norms = norm_parameters(block, size.width) * norms_beside(block, layers)
    return LayerParameters(
        sum(sub.divided for sub in subs) + sum(one.divided for one in beside),
        sum(sub.whole for sub in subs) + sum(one.whole for one in beside) + norms,
    )


def own_sublayers(block: Block, size: Size, layers: range, memory: int | None = None) -> Iterator[SubLayer]:
    """Those of some layers of a stack; what several of them share once."""
    seen = set()
    for layer in layers:
        for sub in sublayers(block.at(layer), size, memory):
            owner = (sub.name, block.owner(layer, size.layers) if sub.name in block.share else layer)
            if owner not in seen:
                seen.add(owner)
                yield sub


def maps_beside(block: Block, size: Size, layers: range) -> Iterator[Map]:
    """What a stack has for some layers besides them, a table as a map from its width to its rows: of biases on the
    scores, of distances; and a convolution."""
    if not layers:
        return
    if block.score_bias:
        yield Map(size.heads, BIAS_BUCKETS, False, "rows")
    if block.distance_rows:
        yield Map(size.width, block.distance_rows, False)
    if block.convolution and 0 in layers:
        yield convolution_map(size.width)
    if block.relative:
        yield from _of_relative(block, size, layers)


def _of_relative(block: Block, size: Size, layers: range) -> Iterator[Map]:
    """What heads add to queries of relative attention, and vectors of segments."""
    one = Map(size.heads, size.key_width, False, "rows")
    own = {block.owner(layer, size.layers) for layer in layers} if "attention" in block.share else layers
    yield from [one] * (2 if block.relative_biases == "stack" else 2 * len(own))
    if block.relative_segments:
        yield from [one, Map(size.heads, 2 * size.key_width, False, "rows")] * len(own)


def norms_beside(block: Block, layers: range) -> int:
    """How many norms a stack has for some layers besides theirs."""
    distances = bool(layers) and bool(block.distance_rows) and block.distance_norm
    return distances + (block.convolution and 0 in layers)


def convolution_map(width: int) -> Map:
    """From a position and its two neighbors."""
    return Map(3 * width, width, bias=True)


def mask_decoder_table(spec: ModelSpec, stack: str, layers: range) -> int:
    """Parameters of the table of positions that a mask decoder begins with; it serves pre-training alone."""
    size = spec.size_of(stack)
    decodes = spec.family.stacks[stack].last_layer == "mask-decoder" and size.layers - 1 in layers
    return spec.context * size.width if decodes else 0


def norm_parameters(block: Block, width: int) -> int:
    """Of one norm over `width` features."""
    return width * NORMS.get(block.norm, 0)  # an unknown word is told when the model is built


def final_norm(block: Block, size: Size) -> int:
    """Parameters of the norm that closes a stack, where it has one."""
    has_one = block.norm_place != "post" and not block.is_recurrent
    return norm_parameters(block, size.width * block.streams) if has_one else 0


def input_tables(family: Family) -> dict[str, int]:
    """Rows of the small tables whose rows all stacks add: of segments, of tasks."""
    rows = {"segment": family.segments, "task": family.tasks}
    return {name: rows[name] for name in family.inputs if name in rows}


def embedding_tables(spec: ModelSpec, stacks: Collection[str]) -> int:
    """Parameters at the input of some stacks besides the token table."""
    family = spec.family
    norms = [
        norm_parameters(family.stacks[name], spec.table_width(name))
        for name in _by_table(family, stacks)
        if family.has_embedding_norm(name)
    ]
    if family.reads_regions:
        norms += [norm_parameters(family.first_block, spec.size.table_width)] * region_norms(spec)
    return sum(one.whole for one in input_maps(spec, stacks)) + sum(norms)


def _by_table(family: Family, stacks: Collection[str]) -> list[str]:
    """Of stacks with the same tables at the input, one."""
    return [*{family.tables[name]: name for name in stacks}.values()]


def input_maps(spec: ModelSpec, stacks: Collection[str]) -> Iterator[Map]:
    """At the input of some stacks besides the token table: tables, as maps from their width to their rows, and what
    widens them; or what makes words of characters, or patches of pixels; and what reads regions."""
    family, width = spec.family, spec.size.table_width
    if family.reads_characters:
        yield from character_maps(spec)
    if family.reads_images:
        yield from patch_maps(spec)
    if family.reads_regions:
        yield from region_maps(spec)
    for name in _by_table(family, stacks):
        if family.stacks[name].position == "learned":
            yield Map(spec.table_width(name), spec.positions_of(name), False)
        if family.stacks[name].position == "axial":
            yield from (Map(*sides, False) for sides in zip(spec.axial_widths, spec.axial, strict=True))
    for rows in input_tables(family).values():
        yield Map(width, rows, False)
    yield from [Map(width, 1, False)] * sum(family.stacks[name].query_stream for name in stacks)
    yield from (one for name, one in widening(spec).items() if name in stacks)


def widening(spec: ModelSpec) -> dict[str, Map]:
    """Stack -> the map from the width of the tables to its own, where they differ."""
    if spec.size.cutoffs:  # whose clusters have maps of their own
        return {}
    blocks = spec.family.stacks.items()
    widths = {stack: spec.size_of(stack).width for stack, block in blocks if not block.reads_table}
    return {
        stack: Map(spec.table_width(stack), width, bias=True)
        for stack, width in widths.items()
        if width != spec.table_width(stack)
    }


def memory_width(spec: ModelSpec, stack: str) -> int | None:
    """Width of the stack that this one attends to."""
    source = spec.family.stacks[stack].cross
    return None if source is None else spec.size_of(source).width
