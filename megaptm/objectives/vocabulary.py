"""What an objective must know of a tokenizer: how many ids, and which of them have a meaning of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from megaptm.errors import UserError
from megaptm.objectives.spelling import TEXT_BEGINS, TEXT_ENDS, spelled


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The ids with a meaning of their own. `None` where the tokenizer has no such token."""

    size: int
    """Number of ids; ids run from 0 to size - 1."""
    pad: int | None = None
    end: int | None = None
    """Closes a document (GPT's end of text, T5's end of sequence)."""
    begin: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    sentinels: tuple[int, ...] = ()
    """Stand-ins for hidden spans, in the order they are handed out."""
    specials: frozenset[int] = frozenset()
    """Never selected for masking and never drawn as a random replacement."""
    words: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """By id, where tokens are words."""

    def ids_of(self, roles: tuple[str, ...]) -> list[int]:
        """Of fields of this class; a `UserError` where there is no such token."""
        for role in roles:
            if getattr(self, role) is None:
                raise UserError(f"the tokenizer has no `{role}` token, which the model is shown: take another.")
        return [getattr(self, role) for role in roles]

    @property
    def blank(self) -> int | None:
        """What stands for a hidden token: the mask, or in a vocabulary without one the first sentinel (T5)."""
        return self.sentinels[0] if self.mask is None and self.sentinels else self.mask

    @cached_property
    def is_special(self) -> np.ndarray:
        """bool [size]: whether an id is one of `specials`."""
        table = np.zeros(self.size, dtype=bool)
        table[sorted(self.specials)] = True
        return table

    @cached_property
    def spellings(self) -> np.ndarray | None:
        """int16 [size, C]: the characters of each word (`objectives.spelling`); None where tokens are no words."""
        if not self.words:
            return None
        marks = {self.begin: TEXT_BEGINS, self.end: TEXT_ENDS}
        return spelled(self.words, {self.words[id_]: mark for id_, mark in marks.items() if id_ is not None})

    @cached_property
    def ordinary(self) -> np.ndarray:
        """int64 [size - len(specials)]: the ids a random replacement is drawn from."""
        return np.flatnonzero(~self.is_special)
