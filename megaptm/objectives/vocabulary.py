"""Vocabulary as objectives use it: number of ids and special tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from megaptm.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids of the special tokens of a vocabulary. None if the tokenizer has no such token."""

    size: int
    """Number of ids; ids run from 0 to size - 1."""
    pad: int | None = None
    end: int | None = None
    """End of document (GPT's end of text, T5's end of sequence)."""
    begin: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    sentinels: tuple[int, ...] = ()
    """Sentinels for masked spans, in order of use."""
    specials: frozenset[int] = frozenset()
    """Ids that are never masked and never used as random replacement."""
    words: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Words by id, if tokens are words."""

    def ids_of(self, roles: tuple[str, ...]) -> list[int]:
        """Return the ids of special tokens, by fields of this class. Raises `UserError` if a token is missing."""
        for role in roles:
            if getattr(self, role) is None:
                raise UserError(
                    f"the tokenizer has no `{role}` token, which the input of the model needs: use another tokenizer."
                )
        return [getattr(self, role) for role in roles]

    @property
    def mask_or_sentinel(self) -> int | None:
        """Return the id that replaces masked tokens: the mask token, or the first sentinel (T5)."""
        return self.sentinels[0] if self.mask is None and self.sentinels else self.mask

    @cached_property
    def is_special(self) -> np.ndarray:
        """Whether an id is a special token (in `specials`), bool [size]."""
        table = np.zeros(self.size, dtype=bool)
        table[sorted(self.specials)] = True
        return table

    def compute_once(self, compute: Callable[[SpecialTokens], T]) -> T:
        """Return the result of a function of these special tokens, which is computed at the first call."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        result: T = self._computed[compute]
        return result

    @cached_property
    def _computed(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Return the ids from which random replacements are sampled, int64 [size - len(specials)]."""
        return np.flatnonzero(~self.is_special)
