"""The one transformer layer, with a slot for each brick of a `Block`, and the stack of them."""

# S sequence, B batch, D width, M memory (encoder) sequence

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from megaptm.bricks import BRICKS, sublayers
from megaptm.bricks.layer import NORMS
from megaptm.errors import UserError
from megaptm.layers.attention import CrossAttention, SelfAttention
from megaptm.layers.feedforward import GATES, PLAIN, FeedForward
from megaptm.layers.mask import Mask
from megaptm.layers.norm import FinalNorm, Norm
from megaptm.layers.positions import rotation, score_bias
from megaptm.layers.split import Dropout, HeadTable
from megaptm.spec import BIAS_BUCKETS, SCORE_BIASES, TURNS, Block, Size

# The modules of bricks, by slot and word; `bricks.BRICKS` has as many.
MODULES: dict[str, dict[str, Callable[..., nn.Module]]] = {
    "attention": {"dot": SelfAttention},
    "cross": {"dot": CrossAttention},
    "ffn": dict.fromkeys((*PLAIN, *GATES), FeedForward),
}

# The words of slots that are no bricks, and of those that are. A family with another word is refused.
WORDS: dict[str, tuple[str, ...]] = {
    "visibility": ("full", "causal", "ordered"),
    "attention": (*BRICKS["attention"],),
    "position": ("none", "learned", "rope", *SCORE_BIASES),
    "norm": (*NORMS,),
    "norm_place": ("pre", "post", "parallel"),
    "ffn": (*BRICKS["ffn"],),
    "scale": ("sqrt", "none"),
}


def check_words(block: Block) -> None:
    """An error that names the slot and the words it knows, if the block uses another."""
    for slot, known in WORDS.items():
        words = getattr(block, slot)
        for word in words if isinstance(words, tuple) and slot in TURNS else (words,):
            if word not in known:
                raise UserError(f"Block.{slot} is {word!r}, which no brick implements; use one of {', '.join(known)}.")
    if unknown := set(block.share) - {"attention", "cross", "ffn"}:
        raise UserError(f"Block.share has {sorted(unknown)}; layers can have attention, cross and ffn in common.")


class Layer(nn.Module):
    """Self-attention, cross-attention where the block has it, feed-forward; each with its norm and residual sum.

    What it has in common with other layers is given as `shared`: name of a child -> the child.
    """

    attention_norm: Norm
    attention: SelfAttention
    cross_norm: Norm
    cross: CrossAttention
    ffn_norm: Norm
    """Of these norms the first alone where the sub-layers are parallel."""
    ffn: FeedForward

    def __init__(
        self,
        block: Block,
        size: Size,
        *,
        dropout: float,
        memory: int | None = None,
        shared: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.place = block.norm_place
        for sub in sublayers(block, size, memory):
            if sub.has_norm:
                self.add_module(f"{sub.name}_norm", Norm(size.width, kind=block.norm, eps=block.norm_eps))
            self.add_module(sub.name, MODULES[sub.name][sub.word](sub.brick, dropout=dropout))
        self.dropout = Dropout(dropout, region="residual")
        for name, child in (shared or {}).items():
            setattr(self, name, child)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        turned: Tensor | None = None,
    ) -> Tensor:
        """[S, B, D] -> [S, B, D]; a function of tensors only, so that it can be run again instead of remembered.

        `turned` is the rotation of queries and keys; what else a stack tells all its layers comes as it does.
        """
        if self.place == "parallel":
            normed = self.attention_norm(x)
            x = x + self.dropout(self.attention(normed, mask, turned))
            if memory is not None:
                x = x + self.dropout(self.cross(normed, memory, memory_mask))
            return x + self.dropout(self.ffn(normed))
        x = self._sublayer(self.attention_norm, self.attention, x, mask, turned)
        if memory is not None:
            x = self._sublayer(self.cross_norm, self.cross, x, memory, memory_mask)
        return self._sublayer(self.ffn_norm, self.ffn, x)

    def _sublayer(self, norm: nn.Module, brick: nn.Module, x: Tensor, *others: Tensor | None) -> Tensor:
        if self.place == "post":
            return norm(x + self.dropout(brick(x, *others)))
        return x + self.dropout(brick(norm(x), *others))


def run(layer: Callable[..., Tensor], *tensors: Any) -> Tensor:
    """Runs the layer: what `Stack.run_layer` is until activations are recomputed."""
    return layer(*tensors)


class Stack(nn.ModuleDict):
    """Some consecutive layers of an encoder or a decoder, under their global numbers.

    Children: `bias_table` (of a score bias, which the whole stack shares), `shared` (sub-layers that layers share, by
    the number of the first of these), `0` ... `L-1`, and after the last layer of a pre-norm stack `final`. A chunk of a
    pipeline holds fewer of them, under the same names.
    """

    def __init__(self, block: Block, size: Size, layers: range, *, dropout: float, memory: int | None = None) -> None:
        """`memory` is the width of the stack that this one attends to, where it is not its own."""
        super().__init__()
        check_words(block)
        if block.position == "rope" and size.key_width % 2:
            raise UserError(f"Block.position is rope, which turns pairs of features; heads have {size.key_width}.")
        self.block, self.size, self.numbers = block, size, layers
        self.read: frozenset[int] = frozenset()
        """Layers whose output somebody asks for."""
        self.run_layer: Callable[..., Tensor] = run
        if block.score_bias and layers:
            self["bias_table"] = HeadTable(BIAS_BUCKETS, size.heads)
        # Before the layers, so that a parameter is called by the place where it is shared, whatever a chunk holds.
        shared = self._shared(layers, dropout, memory) if block.share and layers else {}
        for number in layers:
            theirs = shared.get(block.owner(number, size.layers))
            self[str(number)] = Layer(block.at(number), size, dropout=dropout, memory=memory, shared=theirs)
        if block.norm_place != "post" and size.layers - 1 in layers:
            self["final"] = FinalNorm(
                size.width,
                kind=block.norm,
                eps=block.norm_eps,
                dropout=dropout if block.final_dropout else 0.0,
            )

    def _shared(self, layers: range, dropout: float, memory: int | None) -> dict[int, Mapping[str, nn.Module]]:
        """Number of a first layer -> what it shares with others, registered under that number."""
        block, size = self.block, self.size
        found: dict[int, Mapping[str, nn.Module]] = {}
        self["shared"] = register = nn.ModuleDict()
        for number in sorted({block.owner(layer, size.layers) for layer in layers}):
            layer = Layer(block.at(number), size, dropout=dropout, memory=memory)
            children = {
                f"{name}{suffix}": getattr(layer, f"{name}{suffix}")
                for name in block.share
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
    ) -> Tensor:
        """[S, B, D] -> [S, B, D]; `memory` [M, B, D] is the encoder's output, for layers that attend to it; `positions`
        [B, S] are places, absent: 0, 1, 2 ... Into `outputs` go those of the layers in `read`."""
        scores = mask.scores(self._score_bias(mask))
        memory_scores = memory_mask.scores(None) if memory_mask is not None else None
        turned = self._rotation(mask, positions)
        for number in self.numbers:
            x = self.run_layer(self[str(number)], x, scores, memory, memory_scores, turned)
            if outputs is not None and number in self.read:
                outputs[number] = x
        return self["final"](x) if "final" in self else x

    def _rotation(self, mask: Mask, positions: Tensor | None) -> Tensor | None:
        """Of queries and keys, where the stack knows places by it."""
        if self.block.position != "rope":
            return None
        if positions is None:
            positions = torch.arange(mask.length[0], device=mask.device)[None]
        return rotation(positions, features=self.size.key_width, base=self.block.rope_base)

    def _score_bias(self, mask: Mask) -> Tensor | None:
        """The stack's learned bias on the scores, [1, H, Q, K], if it has one."""
        if "bias_table" not in self:
            return None
        table = cast(HeadTable, self["bias_table"])
        return score_bias(table, *mask.length, bidirectional=self.block.position == "t5-bias")
