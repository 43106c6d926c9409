"""Alternative unsupervised objectives of T5's comparison (arXiv:1910.10683, section 3.3, table 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.hide import everything, one_span, random_tokens, second_part, single_count
from megaptm.objectives.objective import Rate, Share
from megaptm.objectives.show_ask import check_shares, hidden_in_place, kept, masked, shuffled, whole
from megaptm.objectives.spans import RATE
from megaptm.objectives.vocabulary import SpecialTokens


@dataclass(frozen=True)
class _Restored(EncoderDecoder):
    """Base of objectives whose encoder and decoder lengths equal the text's."""

    def input_length(self, raw: int) -> int:
        return raw + 1

    def target_length(self, raw: int) -> int:
        return raw + 1


@dataclass(frozen=True)
class PrefixLM(_Restored):
    """Prefix language modeling: generate the second part of a text from the first, split at a random position."""

    name = "prefix-lm"

    @property
    def noise(self) -> Denoise:
        return Denoise(hide=second_part, show=kept, ask=hidden_in_place)


@dataclass(frozen=True)
class MaskedText(_Restored):
    """Generate a text in which some tokens are masked, or only the masked tokens."""

    rate: Rate = RATE
    """Share of tokens that are masked."""
    mask: Share = 0.9
    """Share of masked tokens that are replaced by the mask token, or the first sentinel if there is none."""
    random: Share = 0.1
    """Share of masked tokens that are replaced by a random token; the rest is unchanged."""
    hide: Literal["tokens", "span"] = "tokens"
    """Unit of masking: single `tokens`, or one `span` (MASS, arXiv:1905.02450, 3.1)."""
    ask: Literal["whole", "hidden"] = "whole"
    """Target: the `whole` text, or the `hidden` tokens in order."""

    prompts = ("masks",)

    def __post_init__(self) -> None:
        check_shares(self.mask, self.random)
        if not self.mask + self.random:
            raise UserError("mask and random are both 0, so that all that is asked would be shown: raise one.")

    @property
    def name(self) -> str:  # type: ignore[override]
        if self.ask == "hidden":
            return "seq2seq-masked-lm" if self.hide == "tokens" else "mass"
        return "bert-style" if self.random else "mass-style"

    @property
    def noise(self) -> Denoise:
        hide = random_tokens(rate=self.rate) if self.hide == "tokens" else one_span(rate=self.rate)
        show = masked(mask=self.mask, random=self.random)
        return Denoise(hide=hide, show=show, ask=whole if self.ask == "whole" else hidden_in_place)

    def target_length(self, raw: int) -> int:
        return super().target_length(raw if self.ask == "whole" else single_count(raw, rate=self.rate))

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if special.blank is None:
            raise UserError(
                f"objective {self.name} needs a tokenizer with a `mask` token, or with sentinels: build the corpus "
                "with tokenizer.kind=unigram."
            )


@dataclass(frozen=True)
class Deshuffling(_Restored):
    """Generate a text from its shuffled tokens."""

    name = "deshuffling"

    @property
    def noise(self) -> Denoise:
        return Denoise(hide=everything, show=shuffled, ask=whole)


@dataclass(frozen=True)
class DroppedTokens(EncoderDecoder):
    """Generate the dropped tokens of a text. Nothing marks their positions."""

    rate: Rate = RATE
    """Share of tokens that are dropped."""

    name = "dropped-tokens"

    @property
    def noise(self) -> Denoise:
        return Denoise(hide=random_tokens(rate=self.rate), show=kept, ask=hidden_in_place)

    def input_length(self, raw: int) -> int:
        return raw - single_count(raw, rate=self.rate) + 1

    def target_length(self, raw: int) -> int:
        return single_count(raw, rate=self.rate) + 1
