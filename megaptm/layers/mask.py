"""Who may look at whom: document numbers, the block's visibility and its pattern, turned into what attention takes."""

# B batch, Q query positions, K key positions, H heads, S positions of one stream,
# A places asked about, M places remembered

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from megaptm.bricks.pattern import Pattern
from megaptm.errors import UserError
from megaptm.layers.past import Past
from megaptm.spec import Block, visibility_of

MARKED_PLACES = "marked_places"
"""Field of a stream that an engine adds, so that no layer has to ask a GPU how many places are marked."""


@dataclass(frozen=True)
class Mask:
    """Visibility between the queries and the keys of one attention, built once per forward."""

    length: tuple[int, int]
    """(Q, K)"""
    device: torch.device
    documents: tuple[Tensor, Tensor] | None = None
    """Numbers [B, Q] and [B, K], 0 for padding: a position sees its own document and nothing else. None: every row is
    one document without padding."""
    causal: bool = False
    """Whether a position sees none after it."""
    order: Tensor | None = None
    """[B, Q]: a position sees those whose number is not above its own. A prefix is zeros before 1, 2 ...; a permutation
    is the permutation."""
    pattern: Pattern | None = None
    """Who sees whom by place; None: all."""
    marks: Tensor | None = None
    """[B, S], not 0 at positions that see, and are seen, whatever the pattern says."""
    marked_places: Tensor | None = None
    """[B, G]: where marks are, as `layers.sparse.marked_places` says; None: nobody has asked it yet."""
    asked: Tensor | None = None
    """[B, A]: where queries stand that run beside the text; they see what is before them in the order, not themselves.
    They are queries behind the Q."""
    past: Past | None = None
    """What is remembered of the rows before, which every position sees; keys before the K."""
    segments: Tensor | None = None
    """[B, Q]: the text that a position is of, for attention that tells; what is remembered is of text 0."""
    backward: Tensor | None = None
    """[B]: 1 of a row that is read from its end, for attention that knows distances."""
    table: Tensor | None = field(init=False, default=None, compare=False, repr=False)
    """What the pattern looks up. An attribute as others: what is compiled reads no cached property."""

    def __post_init__(self) -> None:
        if self.pattern is not None:
            # A dry run's tensors have no numbers: they are no one else's.
            table = _table_of(self.pattern, max(self.length), self.device, detect_fake_mode())
            object.__setattr__(self, "table", table)

    def within(self, pattern: Pattern | None) -> Mask:
        """The same, with a pattern; itself, where that hides nothing."""
        return self if pattern is None or pattern.everything(max(self.length)) else replace(self, pattern=pattern)

    def seen(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether it is, of numbers of rows, heads and positions that broadcast."""
        return self.by_place(batch, head, query, key) & self.by_content(batch, query, key)

    def by_content(self, batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """What documents and the order let one see; of short arrays, whatever the rows are."""
        seen = torch.ones((), dtype=torch.bool, device=self.device)
        if self.documents is not None:
            asking, asked = self.documents[0][batch, query], self.documents[1][batch, key]
            # A query that is padding sees everything: no row of scores is empty, so no softmax gives NaN. Nobody
            # reads what it gathers, because padding is no one's document, so no gradient comes back through it.
            seen = (asking == asked) | (asking == 0)
        if self.order is not None:
            seen = seen & (self.order[batch, key] <= self.order[batch, query])
        return seen

    def by_place(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """What the pattern, marks and the direction of time let one see."""
        seen = key <= query if self.causal else torch.ones((), dtype=torch.bool, device=self.device)
        if self.pattern is None:
            return seen
        near = self.pattern.sees(head, query, key, self.table)
        if self.marks is not None:
            near = near | (self.marks[batch, query] != 0) | (self.marks[batch, key] != 0)
        return seen & near

    @functools.cached_property
    def unmarked(self) -> Mask:
        """The same, of which nothing is marked."""
        return replace(self, marks=None)

    @functools.cached_property
    def dense(self) -> Tensor:
        """Booleans, True where the key is seen: [B, H, Q, K]; either 1 where all rows, or heads, are alike."""
        rows = next((len(one) for one in (self.order, self.marks) if one is not None), 1)
        rows = rows if self.documents is None else len(self.documents[0])
        heads = 1 if self.pattern is None or self.table is None else len(self.table)
        batch, head, query, key = (
            torch.arange(number, device=self.device).view([-1 if axis == place else 1 for axis in range(4)])
            for place, number in enumerate((rows, heads, *self.length))
        )
        seen = self.seen(batch, head, query, key).expand(rows, heads, *self.length)
        if self.asked is not None:
            beside = self._beside(self.asked)
            seen = torch.cat([seen.expand(len(beside), -1, -1, -1), beside], 2)
        return seen if self.past is None else self._with_past(seen, self.past)

    def _beside(self, asked: Tensor) -> Tensor:
        """[B, 1, A, K]: what queries beside the text see."""
        if self.order is None:
            raise UserError("queries beside the text see by an order, and the batch has none: give it `order`.")
        seen = self.order[:, None, None, :] < self.order.gather(1, asked)[:, None, :, None]
        if self.documents is None:
            return seen
        query, key = self.documents[0].gather(1, asked)[:, None, :, None], self.documents[1][:, None, None, :]
        return seen & ((query == key) | (query == 0))

    def _with_past(self, seen: Tensor, past: Past) -> Tensor:
        """[B, 1, Q, M + K]: of what is remembered only the last places may be there."""
        if self.documents is not None:
            raise UserError(
                "rows with several documents cannot be told from what is remembered of rows before: set "
                "data.document_mask=false, or model.memory=0."
            )
        there = torch.arange(past.length, device=self.device) >= past.length - past.filled[:, None]
        there = there[:, None, None, :].expand(-1, 1, seen.shape[2], -1)
        if past.same_length:
            # A place sees as many as are remembered, itself among them.
            ages = torch.arange(self.length[0], device=self.device)[:, None] + past.length
            there = there & (ages - torch.arange(past.length, device=self.device) < past.length)
            seen = seen.tril().triu(1 - past.length)
        return torch.cat([there, seen.expand(len(there), -1, -1, -1)], 3)

    @functools.cached_property
    def apart(self) -> Tensor | None:
        """[B, Q, K] of attention that tells segments: which keys, what is remembered among them, are of another."""
        if self.segments is None:
            return None
        queries = self.segments
        if self.asked is not None:
            queries = torch.cat([queries, queries.gather(1, self.asked)], 1)
        keys = self.segments
        if self.past is not None:
            keys = torch.cat([keys.new_zeros(len(keys), self.past.length), keys], 1)
        return queries[:, :, None] != keys[:, None, :]

    def scores(self, bias: Tensor | None) -> Tensor | None:
        """What is added to (or, as booleans, filters) the scores.

        `bias` is [1, H, Q, K]. None means that the layer's own direction, causal or not, says it all, which lets
        attention take its fast path.
        """
        special = self.documents is not None or self.order is not None or self.pattern is not None
        if bias is None:
            return self.dense if special else None
        if not special and not self.causal:
            return bias
        return bias.masked_fill(~self.dense, float("-inf"))

    @property
    def numbers(self) -> Tensor | None:
        """Document numbers, the order if there is one, and marks if there are: [1 to 3, B, S], all that attention must
        be told of a batch that knows its pattern itself. A tensor, so that a layer can be run again from it."""
        if self.documents is None and self.order is None and self.marks is None:
            return None
        given = [one for one in (self.order, self.marks) if one is not None]
        documents = torch.ones_like(given[0]) if self.documents is None else self.documents[0]
        return torch.stack([documents, *(one.to(documents.dtype) for one in given)])

    @classmethod
    def of(
        cls, numbers: Tensor | None, length: int, device: torch.device, *, visibility: str, pattern: Pattern | None
    ) -> Mask:
        """From `numbers`, of a stack that sees so."""
        causal, ordered = visibility_of(visibility)
        mask = cls((length, length), device, causal=causal).within(pattern)
        if numbers is None:
            return mask
        marks = numbers[1 + ordered] if len(numbers) > 1 + ordered else None
        documents = (numbers[0], numbers[0])
        return replace(mask, documents=documents, order=numbers[1] if ordered else None, marks=marks)


@functools.lru_cache(maxsize=256)
def _table_of(pattern: Pattern, length: int, device: torch.device, mode: object) -> Tensor | None:
    """Copied there once."""
    table = pattern.table(length)
    return None if table is None else torch.from_numpy(table).to(device)


def self_mask(
    batch: dict[str, Tensor], prefix: str, visibility: str, *, block: Block | None = None, past: Past | None = None
) -> Mask:
    """The mask within one stream of a batch, named by the prefix of its `tokens`, `document_ids`, `order` and
    `global_tokens`; of a block also what relative attention is told."""
    names = ("tokens", "document_ids", "order", "global_tokens")
    tokens, documents, order, marks = (batch.get(prefix + name) for name in names)
    assert tokens is not None
    causal, ordered = visibility_of(visibility)
    if ordered and order is None:
        raise UserError(f"The batch has no {prefix}order, by which this model sees: take an objective that gives it.")
    return Mask(
        (tokens.shape[1], tokens.shape[1]),
        tokens.device,
        (documents, documents) if documents is not None else None,
        causal=causal,
        order=order if ordered else None,
        marks=marks,
        marked_places=batch.get(prefix + MARKED_PLACES),
        asked=batch.get(f"{prefix}masked_positions") if block is not None and block.query_stream else None,
        past=past,
        segments=batch.get(f"{prefix}segments") if block is not None and block.relative_segments else None,
        backward=batch.get(f"{prefix}backward"),
    )


def cross_mask(batch: dict[str, Tensor], queries: str, keys: str) -> Mask:
    """The mask between two streams of a batch: a position sees all of the same document's."""
    query, key = batch[queries + "tokens"], batch[keys + "tokens"]
    numbers = batch.get(queries + "document_ids"), batch.get(keys + "document_ids")
    if (numbers[0] is None) != (numbers[1] is None):
        raise UserError(
            f"The batch has document numbers for one of {queries}tokens and {keys}tokens; give both or neither."
        )
    both = (numbers[0], numbers[1]) if numbers[0] is not None and numbers[1] is not None else None
    return Mask((query.shape[1], key.shape[1]), query.device, both)
