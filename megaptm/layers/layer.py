"""Transformer layer with one component per slot of a `Block`."""

# S sequence, B batch, D width, M memory (encoder) sequence

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from megaptm.layers.attention import AttentionModule, CrossAttention
from megaptm.layers.feedforward import FeedForward
from megaptm.layers.layer_costs import SubLayer, sublayers
from megaptm.layers.norm import Norm
from megaptm.layers.split import Dropout
from megaptm.plugins import load_class
from megaptm.spec import Block, Size


def run_without_recomputation(module: Callable[..., Tensor], *tensors: Any) -> Tensor:
    """Run a layer without activation recomputation. This is the default of `Layer.run` and `Layer.run_attention`."""
    return module(*tensors)


class Layer(nn.Module):
    """Transformer layer: self-attention, optional cross-attention and feed-forward, each with norm and residual
    connection.

    `shared` maps names of child modules to modules that several layers share.
    """

    attention_norm: Norm
    attention: AttentionModule
    cross_norm: Norm
    cross: CrossAttention
    ffn_norm: Norm
    """Norm of the feed-forward. With parallel sub-layers only `attention_norm` exists."""
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
        """Build the transformer layer; `number` is its index in the stack."""
        super().__init__()
        self.norm_position = block.norm.position
        self.run: Callable[..., Tensor] = run_without_recomputation
        """Hook that runs the layer, such as with activation recomputation."""
        self.run_attention: Callable[..., Tensor] = run_without_recomputation
        """Hook that runs the attention and cross-attention of the layer."""
        for sub in sublayers(block, size, memory):
            if sub.has_norm:
                self.add_module(f"{sub.name}_norm", Norm(size.width, block.norm))
            elif block.norm.position == "pre":
                self.add_module(f"{sub.name}_norm", nn.Identity())
            if sub.has_output_norm:
                self.add_module(f"{sub.name}_output_norm", Norm(size.width, block.norm))
            self.add_module(sub.name, _module_class(sub)(sub.costs, dropout=dropout))
        self.attention.attend.assign(layer=number)
        self.dropout = Dropout(dropout, masks="residual")
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
        cached_states: Tensor | None = None,
        *known: Tensor | None,
    ) -> Tensor:
        """Return the output of the layer [S, B, D] from its input [S, B, D]. It is a function of tensors only, so that
        activation recomputation can repeat it.

        `position_state`: rotation of queries and keys, or distance table. `keys`: input of keys and values, if not x.
        `cached_states`: further keys of the recurrence cache. `known`: further arguments of the attention module.
        """
        if self.norm_position == "parallel":
            normed = self.attention_norm(x)
            x = x + self.dropout(self.run_attention(self.attention, normed, mask, position_state))
            if memory is not None:
                x = x + self.dropout(self.run_attention(self.cross, normed, memory, memory_mask))
            return x + self.dropout(self.ffn(normed))
        if cached_states is not None and self.norm_position == "pre":
            cached_states = self.attention_norm(cached_states)
        besides = () if cached_states is None and not known else (cached_states, *known)
        x = self._run_sublayer(
            "attention", partial(self.run_attention, self.attention), x, mask, position_state, keys, *besides
        )
        if memory is not None:
            x = self._run_sublayer("cross", partial(self.run_attention, self.cross), x, memory, memory_mask)
        return self._run_sublayer("ffn", self.ffn, x)

    def attention_branch(
        self, x: Tensor, mask: Tensor | None, position_state: Tensor | None, chosen: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the layer's attention branch alone, and its choice of query-key pairs. If a choice is
        passed, it is reused."""
        mixed, chosen = self.attention.reuse(self.attention_norm(x), mask, position_state, chosen)
        return self.dropout(mixed), chosen

    def ffn_branch(self, x: Tensor) -> Tensor:
        """Return the output of the layer's feed-forward branch alone, for any subset of positions."""
        added: Tensor = self.dropout(self.ffn(self.ffn_norm(x)))
        return added

    def _run_sublayer(self, name: str, sublayer: Callable[..., Tensor], x: Tensor, *inputs: Tensor | None) -> Tensor:
        norm: nn.Module = getattr(self, f"{name}_norm")
        match self.norm_position:
            case "post":
                return norm(x + self.dropout(sublayer(x, *inputs)))  # type: ignore[no-any-return]
            case "output":
                return x + self.dropout(norm(sublayer(x, *inputs)))
            case "sandwich":
                output_norm: nn.Module = getattr(self, f"{name}_output_norm")
                return x + self.dropout(output_norm(sublayer(norm(x), *inputs)))
        return x + self.dropout(sublayer(norm(x), *inputs))


def _module_class(sub: SubLayer) -> Callable[..., nn.Module]:
    if sub.name == "attention":
        return load_class(sub.costs.attention, "module")
    return FeedForward if sub.name == "ffn" else CrossAttention
