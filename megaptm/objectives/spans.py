"""Span corruption of T5: the encoder reads text with sentinels, the decoder generates the masked spans
(arXiv:1910.10683, 3.1.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.masking import mask_random_spans, mask_random_tokens, num_masked_spans, num_masked_tokens
from megaptm.objectives.objective import MeanLength, Rate
from megaptm.objectives.replacements import masked_spans_after_sentinels, replace_spans_by_sentinels

CORRUPTION_RATE, MEAN_SPAN_LENGTH = 0.15, 3.0


@dataclass(frozen=True)
class SpanCorruption(EncoderDecoder):
    """Objective of generating masked spans, each after its sentinel."""

    rate: Rate = CORRUPTION_RATE
    """Corruption rate: share of tokens that are masked."""
    mean_span_length: MeanLength = MEAN_SPAN_LENGTH
    """Mean length of a masked span, for `spans`."""
    hide: Literal["spans", "tokens"] = "spans"
    """Unit of masking: `spans`, or single `tokens`, where adjacent ones form a span (section 3.3.2)."""

    def __post_init__(self) -> None:
        if self.hide == "tokens" and self.mean_span_length != MEAN_SPAN_LENGTH:
            raise UserError(
                f"mean_span_length ({self.mean_span_length:g}) has no effect with hide: tokens: remove one."
            )

    prompts = ("sentinels",)

    @property
    def name(self) -> str:  # type: ignore[override]
        return "span-corruption" if self.hide == "spans" else "token-corruption"

    @property
    def noise(self) -> Denoise:
        spans = self.hide == "spans"
        hide = (
            mask_random_spans(rate=self.rate, mean_span_length=self.mean_span_length)
            if spans
            else mask_random_tokens(rate=self.rate)
        )
        return Denoise(hide=hide, show=replace_spans_by_sentinels, ask=masked_spans_after_sentinels)

    def input_length(self, raw: int) -> int:
        """Return the encoder length of span corruption for `raw` tokens: unmasked tokens, one sentinel per span, the
        end token."""
        noise, spans = self._num_masked(raw)
        return raw - noise + spans + 1

    def target_length(self, raw: int) -> int:
        """Return the decoder length of span corruption for `raw` tokens: masked tokens, one sentinel per span, the end
        token."""
        noise, spans = self._num_masked(raw)
        return noise + spans + 1

    def max_sentinels(self, raw: int) -> int:
        return self._num_masked(raw)[1]

    def _num_masked(self, raw: int) -> tuple[int, int]:
        """Return the number of masked tokens and of spans in span corruption; for single tokens the largest number of
        spans."""
        if self.hide == "spans":
            return num_masked_spans(raw, rate=self.rate, mean_span_length=self.mean_span_length)
        noise = num_masked_tokens(raw, rate=self.rate)
        return noise, min(noise, raw - noise + 1)
