"""Hide, show, ask: the three functions a denoising task is made of. The bricks for them: `hide`, `show_ask`.

BART's noises are not made of them (`denoising`): they move tokens, and hide spans of none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from megaptm.objectives.vocabulary import SpecialTokens

Hide = Callable[[np.ndarray, SpecialTokens, np.random.Generator], np.ndarray]
Show = Callable[[np.ndarray, np.ndarray, SpecialTokens, np.random.Generator], np.ndarray]
Ask = Callable[[np.ndarray, np.ndarray, SpecialTokens], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Denoise:
    """A way to spoil a text and to ask for it back."""

    hide: Hide
    """(tokens, special, rng) -> bool [tokens]: which tokens the model must not see."""
    show: Show
    """(tokens, hidden, special, rng) -> what it sees instead."""
    ask: Ask
    """(tokens, hidden, special) -> what it must say."""

    def __call__(
        self, tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which tokens were hidden, what is shown, what is asked."""
        hidden = self.hide(tokens, special, rng)
        return hidden, self.show(tokens, hidden, special, rng), self.ask(tokens, hidden, special)
