"""Transformer layer with one component per slot of a `Block`, and the stack of layers."""

# S sequence, B batch, D width, M memory (encoder) sequence

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from megaptm.bricks import BRICKS, SubLayer, sublayers
from megaptm.bricks.kernels import AUTO, FUSED
from megaptm.errors import UserError
from megaptm.layers.attention import CrossAttention, PatternAttend, SelfAttention
from megaptm.layers.convolution import Convolution
from megaptm.layers.disentangled import DisentangledAttention, distance_rows
from megaptm.layers.draws import Again, remember_draws
from megaptm.layers.feedforward import FeedForward
from megaptm.layers.lsh import HashedAttend, HashedAttention
from megaptm.layers.mask import Mask
from megaptm.layers.norm import FinalNorm, Norm
from megaptm.layers.positions import rotation, score_bias
from megaptm.layers.relative import RelativeAttention, distance_sines
from megaptm.layers.reversible import LayerInputs, run_reversible
from megaptm.layers.split import Dropout, Embedding, HeadTable
from megaptm.layers.window import WindowAttention
from megaptm.plugins import is_plugin
from megaptm.spec import BIAS_BUCKETS, Block, DisentangledSpec, RelativeSpec, Size, value_errors

# Modules by slot and kind. `bricks.BRICKS` has the same keys. `ffn` has one module for all kinds.
MODULES: dict[str, dict[str, Callable[..., nn.Module]]] = {
    "attention": {
        "dot": SelfAttention,
        "banded": SelfAttention,
        "window": WindowAttention,
        "blocks": SelfAttention,
        "pattern": SelfAttention,
        "local": SelfAttention,
        "lsh": HashedAttention,
        "disentangled": DisentangledAttention,
        "relative": RelativeAttention,
    },
    "cross": {"dot": CrossAttention},
}


def check_block(block: Block, size: Size) -> None:
    """Raise `UserError` that names the field, if a block has a value that no component supports."""
    # Values first: the other checks rely on them.
    for errors in (
        value_errors(block),
        _reversible_errors(block),
        _attention_errors(block, size),
        _stack_errors(block, size),
    ):
        if error := next(errors, None):
            raise UserError(f"Block.{error}")


def _attention_errors(block: Block, size: Size) -> Iterator[str]:
    for record in block.attentions:
        yield from record.errors(block, size)


def _stack_errors(block: Block, size: Size) -> Iterator[str]:
    activations = (block.ffn.activation,) if isinstance(block.ffn.activation, str) else block.ffn.activation
    for activation in activations:
        if activation not in BRICKS["ffn"] and not is_plugin(activation):
            yield f"ffn.activation is {activation!r}, which is unknown; use one of {', '.join(BRICKS['ffn'])}."
    if block.position == "rope" and size.key_width % 2:
        yield f"position is rope, which rotates pairs of features, but heads have {size.key_width}: make it even."
    if size.heads % size.key_heads:
        yield f"attention has {size.heads} heads, which kv_heads ({size.key_heads}) must divide: change either."
    own_masks = {sub.word for sub in _attentions(block, size) if sub.brick.own_mask}
    if block.score_bias and own_masks:
        yield (
            f"position is {block.position}, a bias on the scores of all pairs, but {', '.join(sorted(own_masks))} "
            "attention computes only some: use another position, or all pairs."
        )
    if size.remembered and not block.relative:
        yield f"attention is {block.kinds[0]}, but only relative attention has a recurrence cache: set memory to 0."


def _reversible_errors(block: Block) -> Iterator[str]:
    """Yield an error for each field that has no meaning for reversible layers."""
    conflicts = {
        f"norm.position is {block.norm.position}": block.norm.position != "pre",
        f"position is {block.position}": block.score_bias,
        f"attention is {block.kinds[0]}": block.relative or bool(block.distance_rows),
        f"cross is {block.cross}": block.cross is not None,
        f"last_layer is {block.last_layer}": block.last_layer != "once",
        f"sharing.sublayers is {block.sharing.sublayers}": bool(block.sharing.sublayers),
        "convolution is true": block.convolution,
    }
    for conflict in (conflict for conflict, exists in conflicts.items() if exists and block.reversible):
        yield f"{conflict}, which reversible layers do not support: change it, or use residual=sum."


class Layer(nn.Module):
    """Self-attention, optional cross-attention and feed-forward, each with norm and residual connection.

    `shared` maps names of child modules to modules that several layers share.
    """

    attention_norm: Norm
    attention: SelfAttention
    cross_norm: Norm
    cross: CrossAttention
    ffn_norm: Norm
    """With parallel sub-layers only `attention_norm` exists."""
    ffn: FeedForward

    def __init__(
        self,
        block: Block,
        size: Size,
        *,
        dropout: float,
        memory: int | None = None,
        shared: Mapping[str, nn.Module] | None = None,
        number: int = 0,
    ) -> None:
        """`number`: index of the layer in the stack."""
        super().__init__()
        self.norm_position = block.norm.position
        for sub in sublayers(block, size, memory):
            if sub.has_norm:
                self.add_module(f"{sub.name}_norm", Norm(size.width, block.norm))
            made = FeedForward if sub.name == "ffn" else MODULES[sub.name][sub.word]
            self.add_module(sub.name, made(sub.brick, dropout=dropout))
        if isinstance(attend := self.attention.attend, (PatternAttend, HashedAttend)):
            attend.is_of(layer=number)
        self.dropout = Dropout(dropout, region="residual")
        for name, child in (shared or {}).items():
            setattr(self, name, child)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        position_state: Tensor | None = None,
        keys: Tensor | None = None,
        past: Tensor | None = None,
        *known: Tensor | None,
    ) -> Tensor:
        """Return [S, B, D] from [S, B, D]. A function of tensors only, so that activation recomputation can repeat it.

        `position_state`: rotation of queries and keys, or distance table. `keys`: input of keys and values, if not x.
        `past`: further keys of the recurrence cache. `known`: further arguments of the attention module.
        """
        if self.norm_position == "parallel":
            normed = self.attention_norm(x)
            x = x + self.dropout(self.attention(normed, mask, position_state))
            if memory is not None:
                x = x + self.dropout(self.cross(normed, memory, memory_mask))
            return x + self.dropout(self.ffn(normed))
        if past is not None and self.norm_position == "pre":
            past = self.attention_norm(past)
        besides = () if past is None and not known else (past, *known)
        x = self._sublayer(self.attention_norm, self.attention, x, mask, position_state, keys, *besides)
        if memory is not None:
            x = self._sublayer(self.cross_norm, self.cross, x, memory, memory_mask)
        return self._sublayer(self.ffn_norm, self.ffn, x)

    def mixed(
        self, x: Tensor, mask: Tensor | None, position_state: Tensor | None, chosen: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the attention branch of a reversible layer, and its hash buckets. If buckets are given
        they are reused."""
        attention, normed = cast(nn.Module, self.attention), self.attention_norm(x)
        if isinstance(attention, HashedAttention):
            found, chosen = attention.by_buckets(normed, mask, position_state, chosen)
        else:
            found = attention(normed, mask, position_state)
        return self.dropout(found), chosen

    def fed(self, x: Tensor) -> Tensor:
        """Return the output of the feed-forward branch, for any subset of positions."""
        added: Tensor = self.dropout(self.ffn(self.ffn_norm(x)))
        return added

    def _sublayer(self, norm: nn.Module, brick: nn.Module, x: Tensor, *others: Tensor | None) -> Tensor:
        if self.norm_position == "post":
            return norm(x + self.dropout(brick(x, *others)))
        return x + self.dropout(brick(norm(x), *others))


def _attentions(block: Block, size: Size) -> Iterator[SubLayer]:
    """Yield the self-attention of each layer."""
    for layer in range(size.layers):
        yield sublayers(block.at(layer), size)[0]


def _marked(mask: Mask, word: str) -> tuple[Tensor | None, ...]:
    """Return the arguments that tell attention the positions of global tokens."""
    return () if mask.marked_places is None or word == "lsh" else (None, mask.marked_places)


def same(x: Tensor) -> Tensor:
    """Return x. Default of hooks that move tensors between ranks."""
    return x


def run(layer: Callable[..., Tensor], *tensors: Any) -> Tensor:
    """Run a layer. Default of `Stack.run_layer` without activation recomputation."""
    return layer(*tensors)


class Stack(nn.ModuleDict):
    """Consecutive layers of an encoder or decoder, under their global indices.

    Children: `bias_table` (score bias, shared by the stack), `content_bias` and `place_bias` (relative attention, if
    shared by the stack), `distance_table` and `distance_norm` (shared), `convolution` (beside the first layer),
    `place_table` (mask decoder), `shared` (shared sub-layers, by index of the first layer that uses them), `0` ...
    `L-1`, and `final` after the last layer of a pre-norm stack. A pipeline chunk holds some of these children, under
    the same names.
    """

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
        """`memory`: width of the stack that cross-attention reads, if it differs. `context`: number of learned
        positions."""
        super().__init__()
        check_block(block, size)
        self.own_masks = {sub.word for sub in _attentions(block, size) if sub.brick.own_mask}
        self.block, self.size, self.numbers = block, size, layers
        self.read: frozenset[int] = frozenset()
        """Indices of layers whose output is requested."""
        self.kernel = AUTO
        """Configured attention kernel."""
        self.run_layer: Callable[..., Tensor] = run
        self.copy_to_tensor_ranks: Callable[[Tensor], Tensor] = same
        """Hook for tensors that every tensor rank has and uses with its own heads."""
        self.scatter_sequence: Callable[[Tensor], Tensor] = same
        """Hook that returns this rank's part of a tensor along the sequence."""
        self.gather_sequence: Callable[[Tensor], Tensor] = same
        """Hook that returns the full sequence from this rank's part."""
        self.remember_draws: Callable[[], Again] = remember_draws
        """Hook with which reversible layers repeat their dropout masks."""
        if block.score_bias and layers:
            self["bias_table"] = HeadTable(BIAS_BUCKETS, size.heads)
        if isinstance(record := block.attentions[0], RelativeSpec) and layers:
            self["place_dropout"] = Dropout(dropout, region="replicated")
            for name in ("content_bias", "place_bias") if record.biases == "stack" else ():
                self[name] = HeadTable(size.key_width, size.heads)
        if block.distance_rows and layers:
            self["distance_table"] = Embedding(block.distance_rows, size.width)
            if any(isinstance(record, DisentangledSpec) and record.norm for record in block.attentions):
                self["distance_norm"] = Norm(size.width, block.norm)
        if block.convolution and 0 in layers:
            self["convolution"] = Convolution(block, size.width, dropout=dropout)
        self.decodes = block.last_layer == "mask-decoder" and size.layers - 1 in layers
        if self.decodes:
            self["place_table"] = Embedding(context, size.width)
        # Created before the layers, so that shared parameters have the same names in every chunk.
        shared = self._shared(layers, dropout, memory) if block.sharing.sublayers and layers else {}
        for number in layers:
            theirs = shared.get(block.sharing.owner(number, size.layers))
            self[str(number)] = Layer(
                block.at(number), size, dropout=dropout, memory=memory, shared=theirs, number=number
            )
        if block.norm.position == "post" and block.final_dropout and size.layers - 1 in layers:
            self["final"] = Dropout(dropout, region="residual")
        if block.norm.position != "post" and size.layers - 1 in layers:
            self["final"] = FinalNorm(
                size.width * block.streams,
                block.norm,
                dropout=dropout if block.final_dropout else 0.0,
            )

    def _shared(self, layers: range, dropout: float, memory: int | None) -> dict[int, Mapping[str, nn.Module]]:
        """Return first layer index -> modules that it shares with others, registered under that index."""
        block, size = self.block, self.size
        found: dict[int, Mapping[str, nn.Module]] = {}
        self["shared"] = register = nn.ModuleDict()
        for number in sorted({block.sharing.owner(layer, size.layers) for layer in layers}):
            layer = Layer(block.at(number), size, dropout=dropout, memory=memory, number=number)
            children = {
                f"{name}{suffix}": getattr(layer, f"{name}{suffix}")
                for name in block.sharing.sublayers
                for suffix in ("", "_norm")
                if hasattr(layer, f"{name}{suffix}")
            }
            register[str(number)] = nn.ModuleDict(children)
            found[number] = children
        return found

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        positions: Tensor | None = None,
        outputs: dict[int, Tensor] | None = None,
        decode: bool = True,
    ) -> Tensor:
        """Return [S, B, D] from [S, B, D].

        `memory` [M, B, D]: encoder output for cross-attention. `positions` [B, S]; None: 0, 1, 2 ... `outputs` receives
        the outputs of the layers in `read`. Without `decode` a mask decoder runs as an ordinary layer.
        """
        if self.block.relative:
            return self._run_relative(x, mask, outputs)
        if self.block.reversible:
            return self._run_reversible(x, mask, positions)
        scores = self._scores(mask)
        memory_scores = memory_mask.scores(None) if memory_mask is not None else None
        turned, table = self._rotation(mask, positions), self._distances()
        # Computed once for all layers: it takes about twenty operations.
        rows = {
            record: distance_rows(mask.length[0], record, device=mask.device)
            for record in self.block.attentions
            if isinstance(record, DisentangledSpec)
        }
        for number in self.numbers:
            layer, record, before = self[str(number)], self.block.attention_at(number), x
            word = record.kind
            position_state = table if isinstance(record, DisentangledSpec) else turned
            known = (None, rows[record]) if isinstance(record, DisentangledSpec) else _marked(mask, word)
            if self.decodes and decode and number == self.size.layers - 1:
                x = x + self._decoder_positions(mask, positions)
                for _ in range(2):
                    x = self.run_layer(layer, x, scores[word], memory, memory_scores, position_state, before, *known)
            else:
                x = self.run_layer(layer, x, scores[word], memory, memory_scores, position_state, None, *known)
            if number == 0 and "convolution" in self:
                documents = None if mask.documents is None else mask.documents[0]
                x = cast(Convolution, self["convolution"])(before, x, documents)
            if outputs is not None and number in self.read:
                outputs[number] = x
        return self["final"](x) if "final" in self else x

    def attention_scores(self, number: int, x: Tensor, mask: Mask, positions: Tensor | None = None) -> Tensor:
        """Return the scores of a `dot` attention layer with input x [S, B, D], before the softmax: [B, H, S, S]
        float32; zero if masked or at most `LEAST_SCORE`."""
        layer = cast(Layer, self[str(number)])
        read = x if layer.norm_position == "post" else layer.attention_norm(x)
        return layer.attention.scores(read, mask.scores(self._score_bias(mask)), self._rotation(mask, positions))

    def _run_relative(self, x: Tensor, mask: Mask, outputs: dict[int, Tensor] | None) -> Tensor:
        """Run layers with relative attention. The input of each layer enters its recurrence cache."""
        past = mask.past
        sines = distance_sines(
            mask.length[0],
            past.length if past else 0,
            width=self.size.width,
            both_sides=not self.block.causal,
            farthest=past.farthest if past else None,
            backward_B=mask.backward,
            device=mask.device,
        )
        told = self["place_dropout"](sines.to(x.dtype))
        names = ("content_bias", "place_bias")
        biases = [cast(HeadTable, self[name]).weight if name in self else None for name in names]
        record = cast(RelativeSpec, self.block.attentions[0])
        num_cached = mask.length[0] // 2 if record.cached == "half" else mask.length[0]
        for number in self.numbers:
            before = None
            if past is not None:
                before = past.states[number]
                with torch.no_grad():
                    past.seen[number] = self.gather_sequence(x.detach())[:num_cached]
            x = self.run_layer(
                self[str(number)], x, mask.dense, None, None, told, None, before, *biases, mask.apart, mask.asked
            )
            if outputs is not None and number in self.read:
                outputs[number] = x
        return self["final"](x) if "final" in self else x

    def _run_reversible(self, x: Tensor, mask: Mask, positions: Tensor | None) -> Tensor:
        """Run reversible layers. Both residual streams start as x and are concatenated along the sequence, [2S, B, D],
        between chunks. The final norm reads them along the width, [S, B, 2D]."""
        x1, x2 = (x, x) if 0 in self.numbers else x.chunk(2)
        scores, turned = self._scores(mask), self._rotation(mask, positions)
        layers = [LayerInputs(self[str(n)], scores[self.block.attention_at(n).kind], turned) for n in self.numbers]  # type: ignore
        streams = [y.to(x.dtype) for y in run_reversible(x1, x2, layers, self.remember_draws)]
        return self["final"](torch.cat(streams, -1)) if "final" in self else torch.cat(streams)

    def _scores(self, mask: Mask) -> dict[Any, Tensor | None]:
        """Return kind of attention -> mask or bias of its scores, or the numbers from which the module builds its own
        mask."""
        bias = self._score_bias(mask)
        found: dict[Any, Tensor | None] = {}
        for word in self.block.kinds:
            # A kernel that reads document ids and order needs no dense mask.
            if word in self.own_masks or self.kernel not in (AUTO, FUSED):
                found[word] = mask.numbers
            else:
                # A bias on the scores replaces the causal fast path, so the mask must include causality.
                found[word] = mask.dense if word == "disentangled" and mask.causal else mask.scores(bias)
        return found

    def _rotation(self, mask: Mask, positions: Tensor | None) -> Tensor | None:
        """Return the rotation of queries and keys. None without rotary positions."""
        if self.block.position != "rope":
            return None
        if positions is None:
            positions = torch.arange(mask.length[0], device=mask.device)[None]
        return rotation(positions, features=self.size.key_width, base=self.block.rope_base)

    def _distances(self) -> Tensor | None:
        """Return the distance table of the stack. None if there is none."""
        if "distance_table" not in self:
            return None
        table = cast(Embedding, self["distance_table"]).weight
        return self.copy_to_tensor_ranks(self["distance_norm"](table) if "distance_norm" in self else table)

    def _decoder_positions(self, mask: Mask, positions: Tensor | None) -> Tensor:
        """Return the position embeddings of a mask decoder, [S, B or 1, D]."""
        if positions is None:
            positions = torch.arange(mask.length[0], device=mask.device)[None]
        told: Tensor = self["place_table"](self.scatter_sequence(positions.t()))
        return told

    def _score_bias(self, mask: Mask) -> Tensor | None:
        """Return the learned bias of the scores, [1, H, Q, K]. None if there is none."""
        if "bias_table" not in self:
            return None
        table = cast(HeadTable, self["bias_table"])
        return score_bias(table, *mask.length, bidirectional=self.block.position == "t5-bias")
