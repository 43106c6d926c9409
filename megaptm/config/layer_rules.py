"""Rules for layers other than those of a transformer. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.schema import Layout
from megaptm.spec import AttentionSpec, LayerSpec, ModelSpec


def layer_layout_errors(layout: Layout, record: LayerSpec, name: str) -> Iterator[str]:
    """Yield errors of layouts other than data parallelism."""
    for key in ("tensor", "context", "pipeline", "virtual"):
        if (number := getattr(layout, key)) > 1:
            yield f"layout.{key} ({number}) must be 1: {name} {record.reason}, and supports only data parallelism."
    if layout.sequence_parallel:
        yield f"layout.sequence_parallel must be false: {name} {record.reason}, and supports only data parallelism."
    if layout.full_sharding:
        yield f"layout.full_sharding must be false: {name} {record.reason}; use layout.distributed_optimizer."
    if layout.layers_per_stage is not None:
        yield f"layout.layers_per_stage must be absent: {name} {record.reason}, and supports only data parallelism."
    if layout.recompute != "none":
        yield (
            f"layout.recompute ({layout.recompute}) must be none: {name} {record.reason}, and does not support "
            "recomputation."
        )


def layer_model_errors(spec: ModelSpec) -> Iterator[str]:
    """Yield errors of sizes that the layers of a model do not support."""
    for stack, block in spec.family.stacks.items():
        if (record := block.layer) is None:
            continue
        size = spec.size_of(stack)
        if size.heads > 1:
            yield f"heads ({size.heads}) must be 1: {spec.family.name} {record.reason}, without attention heads."
        yield from record.size_errors(size)


def attention_logit_errors(spec: ModelSpec) -> Iterator[str]:
    """Yield an error for each stack whose logits `train.attention_logits_every` cannot measure, because they are not
    plain products of queries and keys, or the layers are not run by `layers.stack.Stack`."""
    plain = (AttentionSpec.module, AttentionSpec.stack)
    for stack, block in spec.family.stacks.items():
        is_plain = all((record.module, record.stack) == plain for record in block.attentions)
        if block.layer is not None or block.residual.stack or not is_plain:
            yield (
                f"train.attention_logits_every does not support the layers of the {stack} of {spec.name}: it measures "
                "only dot products of queries and keys; remove it."
            )
