"""Alternative unsupervised objectives of T5's comparison (arXiv:1910.10683, section 3.3, table 3), and UL2's mixture of
denoisers (arXiv:2205.05131)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from megaptm.errors import UserError
from megaptm.objectives.composed import CONSTANT_ONE, StepValue, Task
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.masking import (
    mask_all,
    mask_one_span,
    mask_random_tokens,
    mask_suffix,
    max_suffix,
    num_masked_tokens,
)
from megaptm.objectives.mixtures import NamedMixture
from megaptm.objectives.objective import Rate, SampleObjective, Share
from megaptm.objectives.replacements import (
    check_replacement_shares,
    masked_tokens_in_order,
    original_text,
    remove_masked_tokens,
    replace_tokens,
    shuffle_tokens,
)
from megaptm.objectives.spans import CORRUPTION_RATE, SpanCorruption
from megaptm.objectives.vocabulary import SpecialTokens

UNIFORM = 0.5
"""Mean share of the second part of a text that is split at a uniform position."""
R, S, X = 1, 2, 3
"""Modes of UL2's denoisers (arXiv:2205.05131, 3.1): regular, sequential, extreme."""


@dataclass(frozen=True)
class SameLengthObjective(EncoderDecoder):
    """Base class of objectives whose encoder and decoder lengths equal the text's."""

    def input_length(self, raw: int) -> int:
        return raw + 1

    def target_length(self, raw: int) -> int:
        return raw + 1


@dataclass(frozen=True)
class PrefixLM(SameLengthObjective):
    """Objective of prefix language modeling: generate the second part of a text from the first, split at a random
    position."""

    rate: Annotated[float, Field(gt=0, le=UNIFORM)] = UNIFORM
    """Mean share of a text that the decoder generates in prefix language modeling; the largest share is twice as
    large. 0.5: the position of the split is uniform. UL2 has 0.25."""

    name = "prefix-lm"

    @property
    def noise(self) -> Denoise:
        return Denoise(hide=mask_suffix(rate=self.rate), show=remove_masked_tokens, ask=masked_tokens_in_order)

    def target_length(self, raw: int) -> int:
        return super().target_length(raw if self.rate == UNIFORM or raw < 2 else max_suffix(raw, rate=self.rate))


@dataclass(frozen=True)
class T5MaskedText(SameLengthObjective):
    """Objective of generating a text in which some tokens are masked, or only the masked tokens."""

    rate: Rate = CORRUPTION_RATE
    """Corruption rate of T5's masked text: share of tokens that are masked."""
    mask_token_prob: Share = 0.9
    """Probability that a masked token is replaced by the mask token, or the first sentinel if there is none."""
    random_token_prob: Share = 0.1
    """Probability that a masked token is replaced by a random token. Otherwise the token is unchanged."""
    hide: Literal["tokens", "span"] = "tokens"
    """Unit of masking: single `tokens`, or one `span` (MASS, arXiv:1905.02450, 3.1)."""
    ask: Literal["whole", "hidden"] = "whole"
    """Text that the decoder generates in T5's masked text: the `whole` text, or the `hidden` tokens in order."""

    prompts = ("masks",)

    def __post_init__(self) -> None:
        check_replacement_shares(self.mask_token_prob, self.random_token_prob)
        if not self.mask_token_prob + self.random_token_prob:
            raise UserError(
                "mask_token_prob and random_token_prob are both 0, so that every label would be visible: raise one."
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        if self.ask == "hidden":
            return "seq2seq-masked-lm" if self.hide == "tokens" else "mass"
        return "bert-style" if self.random_token_prob else "mass-style"

    @property
    def noise(self) -> Denoise:
        hide = mask_random_tokens(rate=self.rate) if self.hide == "tokens" else mask_one_span(rate=self.rate)
        show = replace_tokens(mask_token_prob=self.mask_token_prob, random_token_prob=self.random_token_prob)
        return Denoise(hide=hide, show=show, ask=original_text if self.ask == "whole" else masked_tokens_in_order)

    def target_length(self, raw: int) -> int:
        return super().target_length(raw if self.ask == "whole" else num_masked_tokens(raw, rate=self.rate))

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if special.mask_or_sentinel is None:
            raise UserError(
                f"objective {self.name} needs a tokenizer with a `mask` token, or with sentinels: build the corpus "
                "with tokenizer.kind=unigram."
            )


@dataclass(frozen=True)
class Deshuffling(SameLengthObjective):
    """Objective of generating a text from its shuffled tokens."""

    name = "deshuffling"

    @property
    def noise(self) -> Denoise:
        return Denoise(hide=mask_all, show=shuffle_tokens, ask=original_text)


@dataclass(frozen=True)
class DroppedTokens(EncoderDecoder):
    """Objective of generating the dropped tokens of a text. Nothing marks their positions."""

    rate: Rate = CORRUPTION_RATE
    """Share of tokens that T5's objective `dropped-tokens` drops."""

    name = "dropped-tokens"

    @property
    def noise(self) -> Denoise:
        return Denoise(hide=mask_random_tokens(rate=self.rate), show=remove_masked_tokens, ask=masked_tokens_in_order)

    def input_length(self, raw: int) -> int:
        return raw - num_masked_tokens(raw, rate=self.rate) + 1

    def target_length(self, raw: int) -> int:
        return num_masked_tokens(raw, rate=self.rate) + 1


def _mixture_of_denoisers() -> NamedMixture:
    """Return UL2's mixture (arXiv:2205.05131, table 1): seven denoisers with equal shares, each with its mode."""
    spans = {R: ((3, 0.15), (8, 0.15)), X: ((3, 0.5), (8, 0.5), (64, 0.15), (64, 0.5))}
    denoisers: dict[str, SampleObjective] = {
        f"spans-of-{length}-at-{rate:.0%}": SpanCorruption(rate=rate, mean_span_length=length, mode=mode)
        for mode, options in spans.items()
        for length, rate in options
    }
    denoisers["suffix-at-25%"] = PrefixLM(rate=0.25, mode=S)
    share = StepValue((0,), (1 / len(denoisers),))
    tasks = tuple(Task(label, denoiser, share) for label, denoiser in denoisers.items())
    return NamedMixture(tasks=tasks, weights_by_step={"lm": CONSTANT_ONE}, label="ul2")


TASKS = {
    "deshuffling": Deshuffling,
    "dropped-tokens": DroppedTokens,
    "masked-text": T5MaskedText,
    "prefix-lm": PrefixLM,
}
OBJECTIVES = (
    PrefixLM(),
    T5MaskedText(),
    T5MaskedText(mask_token_prob=1.0, random_token_prob=0.0),
    T5MaskedText(mask_token_prob=0.8, random_token_prob=0.1, ask="hidden"),
    T5MaskedText(rate=0.5, mask_token_prob=0.8, random_token_prob=0.1, hide="span", ask="hidden"),
    Deshuffling(),
    DroppedTokens(),
    _mixture_of_denoisers(),
)
