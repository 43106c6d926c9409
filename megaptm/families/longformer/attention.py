"""Window attention in which global tokens have queries, keys and values of their own (Longformer, arXiv:2004.05150,
section 3.2)."""

# S sequence, B batch, H heads, K head width, D width

from __future__ import annotations

from torch import Tensor

from megaptm.layers.attention import PatternAttend, SelfAttention
from megaptm.layers.costs import LayerCosts
from megaptm.layers.split import Linear


class WindowAttention(SelfAttention):
    """Self-attention with a second projection for global tokens. Other tokens attend to global tokens by the ordinary
    keys and values."""

    attend: PatternAttend
    global_qkv: Linear

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__(costs, dropout=dropout)
        self.global_qkv = Linear.from_shape(costs.linears["global_qkv"])

    def train_global_projections(self, enabled: bool) -> None:
        self.global_qkv.requires_grad_(enabled)

    def compute_attention(
        self,
        x_SBD: Tensor,
        mask: Tensor | None,
        position_state: Tensor | None = None,
        keys: Tensor | None = None,
        cached_states: None = None,
        positions_BG: Tensor | None = None,
        blocks_BHX: Tensor | None = None,
    ) -> Tensor:
        """Return the output of window attention, [S, B, H*K]. `mask`: document ids, attention order and global
        tokens of the batch (`Mask.stacked_fields`)."""
        q, k, v = self._rotate_queries_and_keys(*self._project(x_SBD, keys, mask), position_state)
        global_qkv = None
        if self.attend.has_global_tokens(mask):
            gq, gk, gv = self.global_qkv(x_SBD).unflatten(-1, (-1, 3, self.key_width)).unbind(3)
            global_qkv = self._rotate_queries_and_keys(gq, gk, gv, position_state)
        return self.attend(q, k, v, mask, global_qkv, positions_BG, blocks_BHX)
