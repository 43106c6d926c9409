"""Parameters of vocabulary training, and the check of its size."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.errors import UserError


@dataclass(frozen=True, kw_only=True)
class VocabularyRequest:
    """Parameters of a vocabulary to learn."""

    vocabulary: int
    """Vocabulary size, including special tokens."""
    first: tuple[str, ...]
    """Special tokens with ids 0, 1 ..."""
    last: tuple[str, ...]
    """Special tokens that get their ids after training."""
    unknown: str | None
    """Unknown token, an element of `first`."""
    lowercase: bool
    digits: bool
    """Whether each digit is a separate token."""

    @property
    def room(self) -> int:
        """Vocabulary size without `last`."""
        return self.vocabulary - len(self.last)

    def require(self, ids: int, what: str) -> None:
        """Raise `UserError` if the vocabulary is too small for this many ids and the special tokens."""
        count = len(self.first) + len(self.last)
        if self.vocabulary < count + ids:
            raise UserError(
                f"vocabulary ({self.vocabulary}) has no room for {count} special token{'s' if count > 1 else ''}"
                f" and {what}: ask for more than {count + ids}."
            )
