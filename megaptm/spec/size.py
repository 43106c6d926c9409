"""Size: one row of a paper's table of sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

# arXiv:2005.14165 does not say how wide GPT-3's bands are; GPT-Neo's, which were made after them, are so wide.
BAND = 256


@dataclass(frozen=True, kw_only=True)
class Size:
    """One row of a paper's table of sizes."""

    layers: int
    """Layers of the stack; of each stack where there are several."""
    width: int
    heads: int
    ffn: int
    """Features inside the feed-forward; of a recurrent layer, of its cell."""
    head_width: int | None = None
    """Absent: width / heads. T5-3B and 11B, and GPT-3 13B as printed, differ."""
    kv_heads: int | None = None
    """Heads of keys and values, each of which serves as many heads of queries (PaLM: 1). Absent: heads."""
    band: int | None = None
    """Places that one sees to a side where attention is `banded`, itself included. Absent: 256."""
    memory: int | None = None
    """Places before a row that each layer attends to where attention is `relative`: what the layer below said of them
    in earlier steps. Of recurrent layers 1, the state behind the row before, or none. Absent: none."""
    embedding: int | None = None
    """Width of the token table, at the input and where heads project on it (ALBERT, ELECTRA). Absent: width."""

    axial: tuple[int, int] | None = None
    """Rows and columns of the rectangle in which places lie where positions are `axial`; absent: the one nearest to a
    square that has as many as the model's context."""

    patch: int | None = None
    """Where images are read: pixels of a side of a patch."""
    detector: tuple[int, int] | None = None
    """Where regions of images are read: numbers of a region's features, and classes that what found it tells apart, the
    background first."""
    context: int | None = None
    """Longest sequence with a learned position, where sizes of a family differ in it. Absent: the family's."""

    cutoffs: tuple[int, ...] = ()
    """Ids, most frequent first, from which on words are in the next cluster of an adaptive input and softmax; none: all
    are in one table (arXiv:1809.10853)."""
    division: int = 1
    """What the width of each next cluster's table is divided by."""

    filters: tuple[tuple[int, int], ...] = ()
    """Where words are read by their characters: (characters, filters) of each convolution over them."""
    highway: int = 0
    """Highway layers behind these."""
    character_width: int = 16
    """Numbers of a character's vector."""

    stacks: dict[str, Size] = field(default_factory=dict, hash=False)
    """Stack -> its own size, of stacks that are not as deep or wide as the others."""

    @property
    def table_width(self) -> int:
        """Width of the token table."""
        return self.width if self.embedding is None else self.embedding

    @property
    def key_heads(self) -> int:
        """Heads of keys and values of self-attention."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def band_width(self) -> int:
        """Of `banded` attention."""
        return BAND if self.band is None else self.band

    @property
    def remembered(self) -> int:
        """Places before a row that each layer attends to."""
        return self.memory or 0

    @property
    def key_width(self) -> int:
        """Width of one head's query, key and value."""
        return self.width // self.heads if self.head_width is None else self.head_width
