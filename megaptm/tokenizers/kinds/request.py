"""What is asked of each kind, and what it says when that cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.errors import UserError


@dataclass(frozen=True, kw_only=True)
class VocabularyRequest:
    """A vocabulary to learn."""

    vocabulary: int
    """Number of ids, special ones included."""
    first: tuple[str, ...]
    """Special tokens with the ids 0, 1 ..."""
    last: tuple[str, ...]
    """Special tokens that are given their ids when the vocabulary is learnt."""
    unknown: str | None
    """The one of `first` that stands for what has no id."""
    lowercase: bool
    digits: bool
    """Whether a digit is a token by itself."""

    @property
    def room(self) -> int:
        """Ids before those of `last`."""
        return self.vocabulary - len(self.last)

    def require(self, ids: int, what: str) -> None:
        """Refuse a vocabulary without room for this many ids and the special ones."""
        count = len(self.first) + len(self.last)
        if self.vocabulary < count + ids:
            raise UserError(
                f"vocabulary ({self.vocabulary}) has no room for {count} special token{'s' if count > 1 else ''}"
                f" and {what}: ask for more than {count + ids}."
            )
