"""Span corruption of T5: the encoder reads text with sentinels, the decoder generates the masked spans
(arXiv:1910.10683, 3.1.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.hide import random_spans, random_tokens, single_count, span_counts
from megaptm.objectives.objective import MeanLength, Rate
from megaptm.objectives.show_ask import hidden_after_sentinels, sentinel_per_span

RATE, MEAN = 0.15, 3.0


@dataclass(frozen=True)
class SpanCorruption(EncoderDecoder):
    """Generation of masked spans, each after its sentinel."""

    rate: Rate = RATE
    """Share of tokens that are masked."""
    mean: MeanLength = MEAN
    """Mean length of a masked span, for `spans`."""
    hide: Literal["spans", "tokens"] = "spans"
    """Unit of masking: `spans`, or single `tokens`, where adjacent ones form a span (section 3.3.2)."""

    def __post_init__(self) -> None:
        if self.hide == "tokens" and self.mean != MEAN:
            raise UserError(f"mean ({self.mean:g}) is the length of spans, and tokens are hidden: remove one.")

    prompts = ("sentinels",)

    @property
    def name(self) -> str:  # type: ignore[override]
        return "span-corruption" if self.hide == "spans" else "token-corruption"

    @property
    def noise(self) -> Denoise:
        spans = self.hide == "spans"
        hide = random_spans(rate=self.rate, mean=self.mean) if spans else random_tokens(rate=self.rate)
        return Denoise(hide=hide, show=sentinel_per_span, ask=hidden_after_sentinels)

    def input_length(self, raw: int) -> int:
        """Return the encoder length for `raw` tokens: unmasked tokens, one sentinel per span, the end token."""
        noise, spans = self._counts(raw)
        return raw - noise + spans + 1

    def target_length(self, raw: int) -> int:
        """Return the decoder length for `raw` tokens: masked tokens, one sentinel per span, the end token."""
        noise, spans = self._counts(raw)
        return noise + spans + 1

    def sentinels(self, raw: int) -> int:
        return self._counts(raw)[1]

    def _counts(self, raw: int) -> tuple[int, int]:
        """Return the number of masked tokens and of spans; for single tokens the largest number of spans."""
        if self.hide == "spans":
            return span_counts(raw, rate=self.rate, mean=self.mean)
        noise = single_count(raw, rate=self.rate)
        return noise, min(noise, raw - noise + 1)
