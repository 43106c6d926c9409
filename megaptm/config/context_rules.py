"""Rules of `layout.context`. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.objective_fit import sequence_lengths
from megaptm.config.schema import Config
from megaptm.layers.costs import LayerCosts
from megaptm.layers.layer_costs import layers_by_kind, sublayers
from megaptm.layers.pattern import SlidingWindow
from megaptm.models.head_costs import HEADS
from megaptm.spec import AttentionSpec, ModelSpec

KERNELS = ("auto", "fused", "varlen")
"""Values of `train.attention_kernel` whose kernels compute some queries with all keys."""


def context_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of layouts with context ranks."""
    context = config.layout.context
    if context == 1:
        return
    if (reason := next(_find_reasons(config, spec), None)) is not None:
        yield f"layout.context ({context}) must be 1: {reason}."
        return
    for stack, length in sequence_lengths(config.batch_spec, spec.family).items():
        if length % (2 * context):
            yield (
                f"2 x layout.context (2 x {context}) must divide the {length} tokens of the {stack}'s sequence, of "
                "which each rank holds two chunks: change data.sequence."
            )
    if config.train.attention_kernel not in KERNELS:
        yield (
            f"layout.context ({context}) needs train.attention_kernel {', '.join(KERNELS[:-1])} or {KERNELS[-1]}, not "
            f"{config.train.attention_kernel}."
        )


def _divides(costs: LayerCosts) -> bool:
    """Whether context ranks support this attention: each rank computes its queries with the keys of complete sequences,
    all pairs or a window."""
    pattern, record = costs.pattern, costs.attention
    is_window = pattern is None or (isinstance(pattern, SlidingWindow) and pattern.dilation == 1)
    return is_window and record.module == AttentionSpec.module and record.stack == AttentionSpec.stack


def _find_reasons(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield the reasons why the sequences of a model cannot be divided."""
    family = spec.family
    for stack, block in family.stacks.items():
        size = spec.size_of(stack)
        kinds = layers_by_kind(block, range(size.layers)) if block.layer is None else ()
        for costs in (sublayers(kind, size)[0].costs for kind in kinds):
            if not _divides(costs):
                yield f"{costs.attention.kind} attention in the {stack} of {spec.name} needs complete sequences"
        if not block.residual.saves_activations:
            yield f"{spec.name} has {block.residual.kind} layers, which need complete sequences"
    if family.sampled:
        yield f"a stack of {spec.name} reads tokens that are sampled from complete sequences"
    for entry in family.inputs:
        if entry.fields or entry.is_appended or entry.adds_queries:
            yield f"the input {entry.name} of {spec.name} needs complete sequences"
    for loss in config.built_objective.losses:
        if loss in HEADS and HEADS[loss].reads == "any":
            yield f"the loss {loss} depends on several positions of a sequence"
