"""Denoising tasks from three functions: hide, show, ask. Implementations are in `masking` and `replacements`.

BART's noises (`denoising`) are not built this way: they move tokens and mask empty spans.
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
    """Masking strategy, replacement strategy and label function of a denoising task."""

    hide: Hide
    """Masking function: (tokens, special, rng) -> bool [tokens], tokens to mask."""
    show: Show
    """Replacement function: (tokens, hidden, special, rng) -> input tokens."""
    ask: Ask
    """Label function: (tokens, hidden, special) -> labels."""

    def __call__(
        self, tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the masked positions, input tokens and labels of a denoising task for a text."""
        hidden = self.hide(tokens, special, rng)
        return hidden, self.show(tokens, hidden, special, rng), self.ask(tokens, hidden, special)
