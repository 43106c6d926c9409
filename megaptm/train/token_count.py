"""Number of tokens that a run was trained on, also if the length of its sequences changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megaptm.batch import BatchSpec
from megaptm.config import Config
from megaptm.spec import LayerlessSpec, ModelSpec

FIELD = "tokens"
"""Key of the number of tokens in a checkpoint's state."""


@dataclass
class TokenCount:
    """Tokens trained on before each step. Checkpoints contain the count, because a sample may have had another length
    before the config changed."""

    per_sample: int
    config: Config
    start: int = 0
    """Step from which samples have `per_sample` tokens."""
    tokens_before: int = 0
    """Tokens trained on before `start`."""

    @classmethod
    def from_batch(cls, batch: BatchSpec, config: Config, spec: ModelSpec | LayerlessSpec) -> TokenCount:
        """Return the count of a run whose samples have had the same length from the start."""
        lengths = batch.streams if isinstance(spec, LayerlessSpec) else batch.lengths(spec.family.prefixes)
        return cls(sum(lengths.values()), config)

    def before(self, step: int) -> int:
        """Return the number of tokens trained on before a step."""
        schedule = self.config.batch_schedule
        return self.tokens_before + self.per_sample * (schedule.num_trained(step) - schedule.num_trained(self.start))

    def restore(self, step: int, tokens: Any) -> None:
        """Continue the count in the state of a checkpoint of a step. A checkpoint of an earlier version has none: then
        all samples count with their present length."""
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
            self.start, self.tokens_before = step, tokens
