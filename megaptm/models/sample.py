"""Interfaces for a stack whose input is sampled from a head of an earlier stack, as in ELECTRA."""

# S sequence, B batch, D width, A target positions of a sample

from __future__ import annotations

from typing import Protocol

from torch import Tensor

UNIFORMS = "uniforms"
"""Batch field [B, A] of uniform numbers in [0, 1) for sampling tokens, equal in any layout."""


class SamplingHead(Protocol):
    """Interface of heads from which tokens are sampled."""

    def sample(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Tensor:
        """Return a token sampled from the head for each target position, [B, A]."""
        ...


class InputSampler(Protocol):
    """Interface of classes that sample the input of a stack from a head (`spec.SampledInput.sampler`)."""

    @staticmethod
    def sample(
        head: SamplingHead, x_SBD: Tensor, batch: dict[str, Tensor], tokens_BS: Tensor, tied: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return tokens [B, S] with samples at target positions, and marks of positions, boolean [B, S], for
        `label`."""
        ...

    @staticmethod
    def label(batch: dict[str, Tensor], marks_BS: Tensor) -> dict[str, Tensor]:
        """Return the batch with labels that depend on the marks of `sample`."""
        ...
