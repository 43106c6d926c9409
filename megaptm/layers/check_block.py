"""Checks of a block before its layers are built: a value that no component of a layer supports is an error."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.errors import UserError
from megaptm.layers.feedforward_costs import find_activation
from megaptm.layers.layer_costs import SubLayer, sublayers
from megaptm.spec import AttentionSpec, Block, LayerSpec, Size, block_value_errors


def check_values(block: Block) -> None:
    """Raise `UserError` that names the field, if the record of a block has an unknown value."""
    if error := next(block_value_errors(block), None):
        raise UserError(f"Block.{error}")


def check_block(block: Block, size: Size) -> None:
    """Raise `UserError` that names the field, if a block has a value that no component of a layer supports."""
    check_values(block)  # the other checks rely on it
    if block.layer is not None:
        if error := next(_layer_errors(block, block.layer, size), None):
            raise UserError(f"Block.{error}")
        return
    for errors in (
        block.residual.errors(block),
        _attention_errors(block, size),
        _stack_errors(block, size),
    ):
        if error := next(errors, None):
            raise UserError(f"Block.{error}")


def _layer_errors(block: Block, record: LayerSpec, size: Size) -> Iterator[str]:
    """Yield an error for each field of a block that has no meaning for layers other than a transformer's."""
    for name, default in vars(Block()).items():
        if name not in ("layer", *record.block_fields) and getattr(block, name) != default:
            yield f"{name} is not used by {record.kind} layers: remove it."
    yield from record.errors(block, size)


def _attention_errors(block: Block, size: Size) -> Iterator[str]:
    for record in block.attentions:
        yield from record.errors(block, size)
        for name, value, default in (("qk_norm", record.qk_norm, "none"), ("score_cap", record.score_cap, None)):
            if value != default and record.module != AttentionSpec.module:
                yield f"attention.{name} is {value}, which {record.kind} attention does not support: use {default}."


def _stack_errors(block: Block, size: Size) -> Iterator[str]:
    activations = (block.ffn.activation,) if isinstance(block.ffn.activation, str) else block.ffn.activation
    for activation in activations:
        find_activation(activation)  # raises UserError if it is unknown
    if block.position == "rope" and size.key_width % 2:
        yield f"position is rope, which rotates pairs of features, but heads have {size.key_width}: make it even."
    if size.heads % size.key_heads:
        yield f"attention has {size.heads} heads, which kv_heads ({size.key_heads}) must divide: change either."
    if not block.norm.first and (block.norm.position != "pre" or "attention" in block.sharing.sublayers):
        yield "norm.first is false, which only a pre-norm stack with attention of its own in each layer can have."
    own_masks = {sub.costs.attention.kind for sub in attention_modules(block, size) if sub.costs.defines_mask}
    if block.score_bias and own_masks:
        yield (
            f"position is {block.position}, a bias on the scores of all pairs, but {', '.join(sorted(own_masks))} "
            "attention skips some pairs: use another position, or full attention."
        )
    if block.score_bias and any(record.score_cap is not None for record in block.attentions):
        yield (
            f"position is {block.position}, a bias on the scores, which attention with a score_cap does not add: "
            "use another position, or remove score_cap."
        )
    if size.cached_positions and not block.caches_states:
        yield f"attention is {block.kinds[0]}, which has no recurrence cache: set memory to 0."


def attention_modules(block: Block, size: Size) -> Iterator[SubLayer]:
    """Yield the self-attention module of each layer of a stack."""
    for layer in range(size.layers):
        yield sublayers(block.at(layer), size)[0]
