"""Parameters of vocabulary training, and the check of its size."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.errors import UserError


@dataclass(frozen=True, kw_only=True)
class VocabularyRequest:
    """Parameters for the training of a tokenizer's vocabulary."""

    vocabulary: int
    """Vocabulary size, including special tokens."""
    first: tuple[str, ...]
    """Special tokens with ids 0, 1 ..."""
    last: tuple[str, ...]
    """Special tokens that get their ids after training."""
    unknown: str | None
    """Token for unknown words, one of the special tokens in `first`; None without such a token."""
    lowercase: bool
    digits: bool
    """Whether each digit is a separate token."""

    @property
    def trained_size(self) -> int:
        """Return the size of the vocabulary to train, without `last`."""
        return self.vocabulary - len(self.last)

    def require_room(self, num_ids: int, description: str) -> None:
        """Raise `UserError` if the requested vocabulary is too small for this many ids and the special tokens."""
        num_specials = len(self.first) + len(self.last)
        if self.vocabulary < num_specials + num_ids:
            raise UserError(
                f"vocabulary ({self.vocabulary}) is too small for {num_specials} special "
                f"token{'s' if num_specials > 1 else ''} and {description}: set it to more than "
                f"{num_specials + num_ids}."
            )
