"""Types of the token ids in shards, as manifests name them. Families register further ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np

from megaptm.families.registry import contributions


@dataclass(frozen=True, kw_only=True)
class ShardTokenType:
    """Type of token ids in shards: stored in arrays of the tar, or otherwise if `shard` names another class."""

    pattern: str
    """Regular expression of the type's names in manifests. Groups: `ids`, the numpy type of an id, if the field `ids`
    is empty; `count`, the maximum number of ids per document in the index, after all offsets."""
    ids: str = ""
    """Numpy type of a token id."""
    shard: str = "megaptm.data.shards:Shard"
    """Class of the shards with these token ids, `package.module:NAME`, a subclass of `data.shards.Shard`."""
    noun: str = "document"
    """Word for a document of this type in `megaptm corpus inspect`."""
    is_label: bool = False
    """Whether a document has one id, which stands for a label instead of a text."""

    def id_type(self, name: str) -> np.dtype:
        """Return the little-endian type of an id."""
        return np.dtype(self.ids or self._match_name(name)["ids"]).newbyteorder("<")

    def max_ids(self, name: str) -> int:
        """Return the maximum number of ids per document in the index; 0 if they are stored elsewhere."""
        return int(self._match_name(name).groupdict().get("count") or 0)

    def num_columns(self, name: str) -> int:
        """Return the number of 8-byte columns of the index for these ids."""
        return -(-self.max_ids(name) * self.id_type(name).itemsize // 8)

    def _match_name(self, name: str) -> re.Match[str]:
        if (match := re.fullmatch(self.pattern, name)) is None:
            raise ValueError(f"token ids are stored as {self.pattern}, not {name}.")
        return match


ARRAYS = ShardTokenType(pattern="(?P<ids>uint16|uint32)")


@cache
def token_types() -> tuple[ShardTokenType, ...]:
    """Return the types of the core and of families."""
    return (ARRAYS, *chain.from_iterable(contributions("token_types", "TOKEN_TYPES")))


def find_shard_token_type(name: str) -> ShardTokenType:
    """Return the type with this name in a manifest. Raise ValueError if there is none."""
    for kind in token_types():
        if re.fullmatch(kind.pattern, name):
            return kind
    raise ValueError(f"must match {' or '.join(kind.pattern for kind in token_types())}, but it is {name!r}")
