"""Replaced token detection (ELECTRA, arXiv:2003.10555): a generator fills masked tokens, a discriminator classifies
each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megaptm.batch import IGNORED, BatchField, BatchSpec, batch_fields
from megaptm.objectives.masked import MaskedLM, TextSequence
from megaptm.objectives.objective import Sample, SampleContext, Share


@dataclass(frozen=True)
class ReplacedTokens(MaskedLM):
    """Objective of replaced token detection: masked tokens for a generator. The model computes replaced-token labels
    after the generator has sampled.

    The batch has a random number in [0, 1) for each masked token. The generator's token is sampled with it, so the
    sample is the same on every device and layout.
    """

    hide: str = "tokens-with-repeats"
    mask_token_prob: Share = 0.85
    random_token_prob: Share = 0.0

    losses: ClassVar = {"mlm": 1.0, "replaced-token": 50.0}

    @property
    def name(self) -> str:  # type: ignore[override]
        return "replaced-token-detection"

    def max_predictions(self, sequence: int) -> int:
        """Return the maximum number of masked tokens, as in the released code of ELECTRA."""
        return max(1, int((self.rate + 0.005) * sequence))

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        spec = super().batch_spec(sequence, document_mask)
        uniforms = {"uniforms": BatchField((self.max_predictions(sequence),), "float32")}
        return BatchSpec(spec.streams, {**spec.fields, **uniforms, **batch_fields((sequence,), "replaced")})

    def mask_sequence(
        self, text_sequence: TextSequence, context: SampleContext, starts: np.ndarray | None = None
    ) -> Sample:
        sample = super().mask_sequence(text_sequence, context, starts)
        sample["uniforms"] = context.rng.random(len(sample["labels"]), dtype=np.float32)
        sample["replaced"] = np.where(sample["document_ids"] > 0, 0, IGNORED)
        return sample


TASKS = {"replaced-token-detection": ReplacedTokens}
OBJECTIVES = (ReplacedTokens(),)
