"""Similar words instead of masks (MacBERT, arXiv:2004.13922, 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from megaptm.errors import UserError
from megaptm.families.macbert.similar import REMEDY, SimilarWords, load_similar_words
from megaptm.objectives.denoise import Show
from megaptm.objectives.vocabulary import SpecialTokens

if TYPE_CHECKING:
    from megaptm.objectives.masked import MaskedLM


class SimilarWordReplacement:
    """Replacement of masked words by similar ones."""

    def check(self, objective: MaskedLM, special: SpecialTokens) -> None:
        """Raise `UserError` unless MacBERT's objective has similar words of this tokenizer."""
        if objective.similar is None:
            raise UserError(
                f"objective {objective.name} needs a table of similar words: set the option `similar` to a file; "
                f"{REMEDY}, and see `megaptm config show macbert/tiny`."
            )
        similar = load_similar_words(objective.similar)
        if isinstance(similar, SimilarWords) and similar.max_id >= special.size:
            raise UserError(
                f"similar: {objective.similar} has ids up to {similar.max_id}, but the tokenizer has {special.size} "
                f"ids: the file was made with another tokenizer; {REMEDY}."
            )

    def __call__(
        self, *, mask_token_prob: float, random_token_prob: float, unit_starts: np.ndarray, similar: str
    ) -> Show:
        """Replace each masked word by a similar word (probability `mask_token_prob`), a random one
        (`random_token_prob`), or itself; never by masks. A word without similar words is replaced by a random one.

        Replacements have as many tokens as the word, so that labels keep their positions. A partly masked word gets
        random tokens at its masked positions.
        """
        similar_words = load_similar_words(similar)

        def show(
            tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator
        ) -> np.ndarray:
            shown = tokens.copy()
            starts = np.flatnonzero(unit_starts)
            for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(tokens)], strict=True):
                positions = start + np.flatnonzero(hidden[start:stop])
                if not len(positions):
                    continue
                uniform = rng.random()
                if uniform >= mask_token_prob + random_token_prob:
                    continue
                is_complete = len(positions) == stop - start
                candidates = (
                    similar_words(tuple(tokens[start:stop].tolist()))
                    if uniform < mask_token_prob and is_complete
                    else None
                )
                if candidates is None:
                    shown[positions] = rng.choice(special.ordinary_ids, len(positions))
                else:
                    shown[start:stop] = candidates[int(rng.integers(len(candidates)))]
            return shown

        return show


REPLACEMENT_STRATEGIES = {"similar-words": SimilarWordReplacement()}
