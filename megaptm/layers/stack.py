"""Stack of transformer layers, and the base class of all stacks."""

# S sequence, B batch, D width, M memory (encoder) sequence

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.attention import PatternAttend, SelfAttention, are_offsets
from megaptm.layers.check_block import attention_modules, check_block, check_values
from megaptm.layers.context import UsesContextRanks
from megaptm.layers.kernel_choice import AUTO, FUSED, VARLEN, AttentionWork, choose_kernel
from megaptm.layers.kernels import PRECISIONS, SharedBlocks, describe_device
from megaptm.layers.layer import Layer
from megaptm.layers.mask import Mask
from megaptm.layers.norm import FinalNorm
from megaptm.layers.pattern import Pattern
from megaptm.layers.positions import bias_of_layer, rotary_embedding, score_bias
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.layers.rng import RngReplay, save_rng_state
from megaptm.layers.split import Dropout, HeadTable, SequenceHooks, identity
from megaptm.plugins import load_class
from megaptm.spec import BIAS_BUCKETS, AttentionSpec, Block, RopeParameters, Size


def stack_class(block: Block) -> Callable[..., BaseStack]:
    """Return the class of a stack with the layers of this block. Raise `UserError` if its kinds of attention need
    different classes."""
    check_values(block)
    if block.layer is not None:
        return load_class(block.layer, "stack")
    if block.residual.stack:
        return load_class(block.residual, "stack")
    kinds = {record.stack: record for record in block.attentions if record.stack != AttentionSpec.stack}
    if len(kinds) > 1:
        names = " and ".join(record.kind for record in kinds.values())
        raise UserError(f"Block.attention mixes {names}, which need different stacks: use only one of them.")
    record = next(iter(kinds.values()), AttentionSpec())
    return load_class(record, "stack")


@dataclass(frozen=True)
class AttentionInputs:
    """Arguments of one kind of attention that are equal for all layers of a stack."""

    mask: Tensor | None
    position_state: Tensor | None
    further: tuple[Tensor | None, ...] = ()
    """Further arguments of the attention module, after the arguments of `Stack.run_attention`."""
    score_bias: Tensor | None = None
    """Position bias in the mask, [1, H, Q, K], if the mask differs between sequences: it then gets the gradient."""


@dataclass(frozen=True)
class StackInputs:
    """Arguments of a forward pass through a stack, besides its input."""

    mask: Mask
    memory: Tensor | None = None
    """Encoder output that a decoder's cross-attention reads, [M, B, D]."""
    memory_mask: Mask | None = None
    positions: Tensor | None = None
    """Position ids of the stack's input, [B, S]. None: 0, 1, 2 ..."""
    cache: StackRecurrenceCache | None = None
    """Recurrence cache of the stack, which records the inputs of the layers."""
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    """Batch fields that kinds of attention request (`AttentionSpec.fields`), without the prefix of the stack."""
    decode: bool = True
    """Whether layers run for predictions; False for encoding (mask decoder of DeBERTa)."""
    blocks: SharedBlocks = field(default_factory=SharedBlocks)
    """FlexAttention blocks that layers with the same attention pattern share."""
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """Dictionary that receives the outputs of the layers in `BaseStack.read`."""


class BaseStack(nn.ModuleDict, ABC):
    """Stack of consecutive layers of an encoder or decoder, under their indices in the full stack. Base class of all
    kinds."""

    eager_because: ClassVar[str] = "they are not transformer layers"
    """Reason why torch.compile cannot compile the layers of the stack; empty if all run as `Layer.run`."""

    def __init__(self, block: Block, size: Size, layers: range) -> None:
        super().__init__()
        check_block(block, size)
        self.block, self.size, self.layer_numbers = block, size, layers
        self.read: frozenset[int] = frozenset()
        """Indices of layers of the stack whose output is requested."""

    @abstractmethod
    def forward(self, x: Tensor, inputs: StackInputs) -> Tensor:
        """Return the output of the stack [S, B, D] from its input [S, B, D]."""


class Stack(UsesContextRanks, SequenceHooks, BaseStack):
    """Stack of transformer layers.

    Children: `bias_table` (score bias, shared by the stack), the tables of a kind of attention (`add_tables`), `shared`
    (shared sub-layers, by index of the first layer that uses them), `0` ... `L-1`, and `final` after the last layer of
    a pre-norm stack. A pipeline chunk holds some of these children, under the same names.
    """

    eager_because = ""

    def __init__(
        self,
        block: Block,
        size: Size,
        layers: range,
        *,
        dropout: float,
        memory: int | None = None,
        context: int = 0,
    ) -> None:
        """Build the layers of the stack. `memory`: width of the stack that cross-attention reads, if it differs.
        `context`: number of learned positions."""
        super().__init__(block, size, layers)
        kinds = {sub.costs.attention: sub.costs for sub in attention_modules(block, size)}
        self.patterns = {record: costs.pattern for record, costs in kinds.items() if costs.defines_mask}
        """Kind of attention that defines the mask itself -> its pattern; None: by hashes."""
        self.scored = block.score_bias or any(costs.scored for costs in kinds.values())
        """Whether terms, such as position biases, are added to the scores of self-attention."""
        self.kernel = AUTO
        """Configured kernel for the attention of the stack."""
        self.copy_to_tensor_ranks: Callable[[Tensor], Tensor] = identity
        """Hook for tensors that every tensor rank has and uses with its own heads."""
        self.save_rng_state: Callable[[], RngReplay] = save_rng_state
        """Hook with which recomputed layers of the stack repeat their dropout masks."""
        if layers:
            self.add_tables(dropout=dropout, context=context)
        # Created before the layers, so that shared parameters have the same names in every chunk.
        shared = self._shared_modules(layers, dropout, memory) if block.sharing.sublayers and layers else {}
        for number in layers:
            of_layer = shared.get(block.sharing.owner(number, size.layers))
            self[str(number)] = Layer(
                block.at(number), size, dropout=dropout, memory=memory, shared=of_layer, number=number
            )
        if block.norm.position == "post" and block.final_dropout and size.layers - 1 in layers:
            self["final"] = Dropout(dropout, masks="residual")
        if block.norm.position != "post" and size.layers - 1 in layers:
            self["final"] = FinalNorm(
                size.width * block.residual.streams,
                block.norm,
                dropout=dropout if block.final_dropout else 0.0,
            )

    def add_tables(self, *, dropout: float, context: int) -> None:
        """Add the tables that layers of this chunk of the stack share, besides shared sub-layers."""
        if self.block.score_bias:
            self["bias_table"] = HeadTable(BIAS_BUCKETS, self.size.heads)

    def _shared_modules(self, layers: range, dropout: float, memory: int | None) -> dict[int, Mapping[str, nn.Module]]:
        """Return the modules that layers share with later layers of the stack, by index of the first layer, under which
        they are registered."""
        block, size = self.block, self.size
        shared: dict[int, Mapping[str, nn.Module]] = {}
        self["shared"] = register = nn.ModuleDict()
        for number in sorted({block.sharing.owner(layer, size.layers) for layer in layers}):
            layer = Layer(block.at(number), size, dropout=dropout, memory=memory, number=number)
            children = {
                f"{name}{suffix}": getattr(layer, f"{name}{suffix}")
                for name in block.sharing.sublayers
                for suffix in ("", "_norm", "_output_norm")
                if hasattr(layer, f"{name}{suffix}")
            }
            register[str(number)] = nn.ModuleDict(children)
            shared[number] = children
        return shared

    def forward(self, x: Tensor, inputs: StackInputs) -> Tensor:
        inputs = self.with_offsets(x, inputs)
        attention = self.attention_inputs(x, inputs)
        for number in self.layer_numbers:
            x = self.run_layer(number, x, inputs, attention[self.block.attention_at(number)])
            if number in self.read:
                inputs.outputs[number] = x
        return self["final"](x) if "final" in self else x

    def run_layer(self, number: int, x: Tensor, inputs: StackInputs, attention: AttentionInputs) -> Tensor:
        """Run one layer of the stack."""
        return self.run_attention(number, x, inputs, attention)

    def run_attention(
        self,
        number: int,
        x: Tensor,
        inputs: StackInputs,
        attention: AttentionInputs,
        *,
        keys: Tensor | None = None,
        cached_states: Tensor | None = None,
    ) -> Tensor:
        """Run the attention of one layer of the stack. `keys` and `cached_states` as in `Layer.forward`."""
        layer, further = cast(Layer, self[str(number)]), attention.further
        attend = layer.attention.attend
        mask, bias = attention.mask, attention.score_bias
        reads_fields = mask is None or not are_offsets(mask)
        if (
            isinstance(attend, PatternAttend)
            and reads_fields
            and self._reads_stacked_fields(self.block.attention_at(number))
        ):
            blocks = attend.shared_blocks(inputs.mask, inputs.blocks, x.dtype, self.size.key_width)
            further = further if blocks is None else (*(further or (None,)), blocks)
        if mask is not None and bias is not None:
            mask = bias_of_layer(bias, mask)
        return layer.run(
            layer,
            x,
            mask,
            inputs.memory,
            None if inputs.memory_mask is None else inputs.memory_mask.for_kernel(None),
            attention.position_state,
            keys,
            cached_states,
            *further,
        )

    def with_offsets(self, x: Tensor, inputs: StackInputs) -> StackInputs:
        """Return the inputs with offsets of documents as masks, where the kernel chosen for x takes them."""
        if self.kernel not in (AUTO, VARLEN):
            return inputs
        mask, memory_mask = inputs.mask, inputs.memory_mask
        if mask.offsets is not None and not all(map(self._reads_stacked_fields, self._records)):
            mask = replace(mask, by_offsets=self._takes_offsets(x, mask, scored=self.scored))
        is_capped = any(record.score_cap is not None for record in self._records)
        if memory_mask is not None and memory_mask.offsets is not None and not is_capped:
            by_offsets = self._takes_offsets(x, memory_mask, reads_memory=True)
            memory_mask = replace(memory_mask, by_offsets=by_offsets)
        return replace(inputs, mask=mask, memory_mask=memory_mask)

    def _takes_offsets(
        self,
        x: Tensor,
        mask: Mask,
        *,
        pattern: Pattern | None = None,
        scored: bool = False,
        reads_memory: bool = False,
    ) -> bool:
        work = AttentionWork(
            queries=mask.length[0],
            key_width=self.size.key_width,
            precision=PRECISIONS.get(x.dtype, str(x.dtype)),
            causal=mask.causal,
            pattern=pattern,
            documents=True,
            offsets=True,
            ordered=mask.order is not None,
            marked=pattern is not None and mask.marks is not None,
            scored=scored,
            reads_memory=reads_memory,
        )
        return choose_kernel(work, describe_device(x.device), self.kernel).kernel == VARLEN

    def attention_inputs(self, x: Tensor, inputs: StackInputs) -> dict[AttentionSpec, AttentionInputs]:
        """Return the inputs of each kind of attention in the stack. `x`: input of the stack."""
        mask, scores, bias = inputs.mask, None, None
        if not all(map(self._reads_stacked_fields, self._records)):
            bias = self._score_bias(mask)
            scores = mask.for_kernel(bias)
        turned = self._compute_rotations(mask, inputs.positions)
        # Every kind but those without global tokens takes their positions.
        marked = () if mask.global_positions is None else (mask.global_positions,)
        return {
            record: AttentionInputs(
                self._mask_fields(x, mask, record) if self._reads_stacked_fields(record) else scores,
                turned.get(record.rope),
                marked if record.takes_global_positions else (),
                bias if scores is not None and bias is not None and len(scores) > 1 else None,
            )
            for record in self._records
        }

    def attention_scores(self, number: int, x: Tensor, mask: Mask, positions: Tensor | None = None) -> Tensor:
        """Return the scores of a dot-product attention layer with input x [S, B, D], before the softmax: [B, H, S, S]
        float32; zero if masked or at most `MIN_SCORE`."""
        layer = cast(Layer, self[str(number)])
        read = x if layer.norm_position in ("post", "output") else layer.attention_norm(x)
        attention = cast(SelfAttention, layer.attention)
        turned = self._compute_rotations(mask, positions).get(self.block.attention_at(number).rope)
        return attention.scores(read, mask.for_kernel(self._score_bias(mask)), turned)

    @property
    def _records(self) -> tuple[AttentionSpec, ...]:
        """Return the kinds of attention of these layers."""
        return tuple(dict.fromkeys(map(self.block.attention_at, self.layer_numbers)))

    def _reads_stacked_fields(self, record: AttentionSpec) -> bool:
        """Whether the kernel of a kind of attention reads document ids and order, and needs no dense mask."""
        return record in self.patterns or record.score_cap is not None or self.kernel not in (AUTO, FUSED, VARLEN)

    def _mask_fields(self, x: Tensor, mask: Mask, record: AttentionSpec) -> Tensor | None:
        """Return the batch's part of the mask of a kind of attention: document ids and attention order
        (`Mask.stacked_fields`), or document offsets for kernels that take them; with context ranks also its pattern."""
        pattern = self.patterns.get(record)
        is_fit = pattern is not None and record.score_cap is None and self.kernel in (AUTO, VARLEN)
        # The last query of a document and its last key are the same position, unless later keys are gathered.
        is_aligned = mask.causal or self.context.size == 1
        if is_fit and mask.offsets is not None and is_aligned and self._takes_offsets(x, mask, pattern=pattern):
            return mask.offsets
        if self.context.size == 1:
            return mask.stacked_fields
        # Other layers of the stack may take offsets, for which a window or a cap of this kind would be lost.
        return replace(mask, by_offsets=False).with_pattern(pattern).for_kernel(None)

    def _compute_rotations(self, mask: Mask, positions: Tensor | None) -> dict[RopeParameters, Tensor]:
        """Return the rotary embedding of queries and keys for the parameters of each layer's attention
        (`AttentionSpec.rope`). Empty without rotary positions."""
        if self.block.position != "rope":
            return {}
        if positions is None:
            positions = torch.arange(mask.length[0], device=mask.device)[None]
        different = dict.fromkeys(record.rope for record in self._records)
        return {rope: rotary_embedding(positions, features=self.size.key_width, rope=rope) for rope in different}

    def _score_bias(self, mask: Mask) -> Tensor | None:
        """Return the learned bias of the attention scores, [1, H, Q, K]; None without a bias."""
        if "bias_table" not in self:
            return None
        table = cast(HeadTable, self["bias_table"])
        bidirectional, (queries, keys) = self.block.position == "t5-bias", mask.length
        if mask.queries is None:
            return score_bias(table, range(queries), keys, bidirectional=bidirectional)
        chunks = self.context.chunks(keys)
        return torch.cat([score_bias(table, chunk, keys, bidirectional=bidirectional) for chunk in chunks], 2)
