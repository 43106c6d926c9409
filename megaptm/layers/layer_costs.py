"""Linear layers and costs of transformer layers and stacks. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from megaptm.layers.attention_costs import CrossAttentionCosts
from megaptm.layers.costs import LayerCosts, LinearShape, costs_class
from megaptm.layers.feedforward_costs import find_activation
from megaptm.spec import BIAS_BUCKETS, Block, ModelSpec, Size

NORMS = {"layer": 2, "layer-no-shift": 1, "layer-fixed": 0, "rms": 1, "rms-unit-offset": 1}
"""Value of `NormSpec.kind` -> parameters per feature."""


@dataclass(frozen=True)
class SubLayer:
    """Costs of a sub-layer of a transformer layer, with the norm and residual sum around it."""

    name: str
    """Name of the sub-layer: `attention`, `cross` or `ffn`; `layer` for layers other than a transformer's."""
    costs: LayerCosts
    norm: int
    """Number of parameters of the sub-layer's norms."""
    has_norm: bool = True
    """Whether the sub-layer has its own norm. With parallel norms, the feed-forward shares the norm of attention. The
    first layer may have no norm before attention (`NormSpec.first`)."""
    has_output_norm: bool = False
    """Whether the sub-layer has a second norm, of its output (`sandwich`)."""

    @property
    def is_attention(self) -> bool:
        """Whether the sub-layer is attention or cross-attention."""
        return self.name in ("attention", "cross")

    @property
    def divided(self) -> int:
        """Return the number of the sub-layer's parameters that are sharded over tensor ranks."""
        norms = sum(norm.features for norm in self.costs.norms.values() if norm.split == "columns")
        return self.costs.biases + norms + sum(linear.divided for linear in self.costs.linears.values())

    @property
    def replicated(self) -> int:
        """Return the number of the sub-layer's parameters that are replicated on tensor ranks."""
        norms = sum(norm.features for norm in self.costs.norms.values() if norm.split == "shared")
        return self.norm + norms + sum(linear.replicated for linear in self.costs.linears.values())


@lru_cache(maxsize=256)
def sublayers(block: Block, size: Size, memory: int | None = None) -> tuple[SubLayer, ...]:
    """Return the costs of the sub-layers of one transformer layer. `block` must have one value per slot; `memory`:
    width of the stack that cross-attention reads."""
    memory = size.width if memory is None else memory
    if block.layer is not None:
        return (SubLayer("layer", costs_class(block.layer)(block, size, memory), 0, False),)
    assert isinstance(block.ffn.activation, str), "call `Block.at` for one layer first"
    classes = {
        "attention": costs_class(block.attentions[0]),
        **({"cross": CrossAttentionCosts} if block.cross else {}),
        "ffn": find_activation(block.ffn.activation).costs,
    }
    made = []
    for name, class_ in classes.items():
        has_norm = block.norm.first if name == "attention" else block.norm.position != "parallel"
        has_output_norm = block.norm.position == "sandwich"
        norm = norm_parameters(block, size.width) * (has_norm + has_output_norm)
        made.append(SubLayer(name, class_(block, size, memory), norm, has_norm, has_output_norm))
    return tuple(made)


@lru_cache(maxsize=4096)
def layers_by_kind(block: Block, layers: Sequence[int]) -> dict[Block, int]:
    """Return the distinct kinds of blocks among some layers of a stack, and the number of layers of each."""
    return dict(Counter(block.at(layer) for layer in layers))


@lru_cache(maxsize=4096)
def passes_by_kind(block: Block, size: Size, layers: Sequence[int]) -> dict[Block, int]:
    """Return the distinct kinds of blocks among some layers of a stack, and how often a pass runs each."""
    repeated = (costs_class(record).repeated_layers(record, size) for record in {*block.attentions})
    more = Counter(block.at(layer) for layer in {*chain.from_iterable(repeated)} if layer in layers)
    return {kind: count + more[kind] for kind, count in layers_by_kind(block, layers).items()}


@dataclass(frozen=True)
class LayerParameters:
    """Number of parameters of some layers of a stack."""

    divided: int
    """Number of parameters divided over tensor ranks."""
    replicated: int
    """Number of parameters replicated on tensor ranks."""


@lru_cache(maxsize=4096)
def layer_parameters(block: Block, size: Size, layers: range, memory: int | None = None) -> LayerParameters:
    """Return the parameters of some layers of a stack, shared ones once, and of the stack's tables, without final
    norm."""
    subs = [*own_sublayers(block, size, layers, memory)]
    beside = [*linears_outside_layers(block, size, layers)]
    norms = norm_parameters(block, size.width) * _num_norms_outside_layers(block, layers)
    return LayerParameters(
        sum(sub.divided for sub in subs) + sum(linear.divided for linear in beside),
        sum(sub.replicated for sub in subs) + sum(linear.replicated for linear in beside) + norms,
    )


def own_sublayers(block: Block, size: Size, layers: range, memory: int | None = None) -> Iterator[SubLayer]:
    """Yield the sub-layers of some layers of a stack, shared ones once."""
    counted = set()
    for layer in layers:
        for sub in sublayers(block.at(layer), size, memory):
            owner = (
                sub.name,
                block.sharing.owner(layer, size.layers) if sub.name in block.sharing.sublayers else layer,
            )
            if owner not in counted:
                counted.add(owner)
                yield sub


def linears_outside_layers(block: Block, size: Size, layers: range) -> Iterator[LinearShape]:
    """Yield the linear layers of a stack outside of its layers: tables of score biases, and those of its kinds of
    attention."""
    if not layers:
        return
    if block.score_bias:
        yield LinearShape(size.heads, BIAS_BUCKETS, False, "heads")
    for record in dict.fromkeys(block.attentions):
        yield from costs_class(record).stack_linears(record, block, size, layers)


def _num_norms_outside_layers(block: Block, layers: range) -> int:
    """Return the number of norms of a stack besides those of its layers."""
    return sum(costs_class(record).stack_norms(record, layers) for record in dict.fromkeys(block.attentions))


def pretraining_table(spec: ModelSpec, stack: str, layers: range) -> LinearShape | None:
    """Return the table of positions that some layers of a stack have in pre-training only, or None."""
    block, size = spec.family.stacks[stack], spec.size_of(stack)
    for record in block.attentions:
        if table := costs_class(record).position_table(record, size, layers, spec.context):
            return table
    return None


def norm_parameters(block: Block, width: int) -> int:
    """Return the number of parameters of one norm over `width` features."""
    return width * NORMS.get(block.norm.kind, 0)  # unknown values raise an error when the model is built


def final_norm(block: Block, size: Size) -> int:
    """Return the number of parameters of a stack's final norm; 0 if it has none."""
    has_one = block.norm.position != "post" and block.layer is None
    return norm_parameters(block, size.width * block.residual.streams) if has_one else 0


def memory_width(spec: ModelSpec, stack: str) -> int | None:
    """Return the width of the stack that cross-attention of this stack reads, or None."""
    source = spec.family.stacks[stack].cross
    return None if source is None else spec.size_of(source).width
