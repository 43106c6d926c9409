"""Attention."""

from __future__ import annotations

from megaptm.bricks.brick import Brick, Kept, Map, Moved, register
from megaptm.spec import Block, Size


@register("attention", "dot")
class SelfAttentionBrick(Brick):
    """Scaled dot products of one stream's queries and keys. Rows of `qkv` are ordered (head, [q, k, v], key width)."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.features = size.heads * size.key_width
        bias = block.attention_bias
        self.maps = {
            "qkv": Map(size.width, 3 * self.features, bias, "columns"),
            "output": Map(self.features, size.width, bias, "rows"),
        }

    def kept(self, element: int, *, dropout: bool) -> Kept:
        """Queries and the output; keys and values."""
        return Kept(own=2 * self.features * element, memory=2 * self.features * element)

    def moved(self, element: int) -> Moved:
        """Heads are laid out for the kernel and back; queries and keys are turned by `rope`."""
        # Each is read twice and written, with a float32 product written and read between.
        turned = 2 * self.features * (3 * element + 8) if self.block.position == "rope" and "qkv" in self.maps else 0
        return Moved(forward=self.features * 4 * element + turned, backward=self.features * 8 * element + turned)


@register("cross", "dot")
class CrossAttentionBrick(SelfAttentionBrick):
    """Queries of one stream, keys and values of another's output. Rows of `kv`: (head, [k, v], key width)."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        bias = block.attention_bias
        self.maps = {
            "query": Map(size.width, self.features, bias, "columns"),
            "kv": Map(memory, 2 * self.features, bias, "columns", of_memory=True),
            "output": Map(self.features, size.width, bias, "rows"),
        }
