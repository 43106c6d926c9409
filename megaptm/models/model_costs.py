"""Multiply-adds of the layers, embeddings and heads of a model. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from megaptm.layers.layer_costs import memory_width, passes_by_kind, sublayers
from megaptm.models.embed_costs import inputs_read, widening_projections
from megaptm.models.head_costs import head_costs
from megaptm.spec import Block, ModelSpec


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of a sequence in a forward pass, grouped by the gradients that the backward pass computes."""

    with_gradients: int = 0
    """Multiply-adds of products with gradients of input and weight."""
    weight_only: int = 0
    no_gradients: int = 0

    def __add__(self, other: MultiplyAdds) -> MultiplyAdds:
        return MultiplyAdds(
            self.with_gradients + other.with_gradients,
            self.weight_only + other.weight_only,
            self.no_gradients + other.no_gradients,
        )

    def __mul__(self, times: int) -> MultiplyAdds:
        return MultiplyAdds(self.with_gradients * times, self.weight_only * times, self.no_gradients * times)

    @property
    def forward(self) -> int:
        return self.with_gradients + self.weight_only + self.no_gradients

    @property
    def step(self) -> int:
        """Multiply-adds of a sequence in forward and backward pass."""
        return 3 * self.with_gradients + 2 * self.weight_only + self.no_gradients


def layer_multiply_adds(
    spec: ModelSpec, stack: str, kind: Block, lengths: Mapping[str, int], *, attention_only: bool = False
) -> MultiplyAdds:
    """Return the multiply-adds of a layer per sequence. `kind`: its block. `lengths`: stack -> sequence length.

    Attention counts all query-key pairs. Projections of a distance table, once per pass, are not counted.
    `attention_only`: without the feed-forward.
    """
    memory, total = lengths[kind.cross] if kind.cross else 0, MultiplyAdds()
    for sub in sublayers(kind, spec.size_of(stack), memory_width(spec, stack)):
        if attention_only and not sub.is_attention:
            continue
        own, keys = lengths[stack], memory if sub.name == "cross" else lengths[stack]
        linears = [
            linear for linear in sub.costs.linears.values() if not (linear.reads_distances or linear.global_only)
        ]
        products = sum((keys if linear.reads_memory else own) * linear.weights for linear in linears)
        # Keys and values of the recurrence cache have weight gradients but no input gradients. Hashes have no
        # gradients.
        total += MultiplyAdds(
            products + 2 * sub.costs.pairs(own, keys) * sub.costs.features,
            sub.costs.cache_multiply_adds,
            sub.costs.hash_multiply_adds(own),
        )
    return total


def input_multiply_adds(spec: ModelSpec, lengths: Mapping[str, int], appended: int) -> MultiplyAdds:
    """Return the multiply-adds of the embedding of some stacks. `appended`: positions after the text of a sequence."""
    widened = widening_projections(spec)
    total = MultiplyAdds(sum(lengths[name] * linear.weights for name, linear in widened.items() if name in lengths))
    for costs, positions in inputs_read(spec, lengths, appended):
        total += MultiplyAdds(*costs.multiply_adds(positions))
    return total


@dataclass(frozen=True)
class PartCosts:
    """Costs of the layers, embeddings and heads of a model, in any unit, for its division into pipeline stages."""

    layers: Sequence[float]
    """Cost of each layer of the model (of all stacks, one stack after another)."""
    inputs: Mapping[str, float]
    """Cost of the embedding of each stack."""
    heads: Mapping[str, float]


def count_part_costs(
    spec: ModelSpec,
    lengths: Mapping[str, int],
    *,
    num_predicted: int | None = None,
    appended: int = 0,
    heads: Collection[str],
    recompute: str = "none",
    recompute_every: int = 1,
) -> PartCosts:
    """Return the multiply-adds of a training step on one sequence, by part of the model. `heads`: heads with a loss.
    `recompute`: recomputation of every n-th layer, `layout.recompute`."""
    layers = []
    for name, block in spec.family.stacks.items():
        size = spec.size_of(name)
        for number in range(size.layers):
            kind = block.at(number)
            repeats = passes_by_kind(block, size, (number,))[kind]
            own = layer_multiply_adds(spec, name, kind, lengths)
            again = MultiplyAdds()
            if recompute != "none" and number % recompute_every == 0:
                again = layer_multiply_adds(spec, name, kind, lengths, attention_only=recompute == "attention")
            layers.append(repeats * (own.step + again.forward))
    costs = head_costs(spec)
    return PartCosts(
        layers,
        {
            name: input_multiply_adds(spec, {name: length}, appended if not index else 0).step
            for index, (name, length) in enumerate(lengths.items())
        },
        {
            name: 3 * costs[name].multiply_adds(costs[name].positions_read(lengths[costs[name].stack], num_predicted))
            for name in heads
        },
    )
