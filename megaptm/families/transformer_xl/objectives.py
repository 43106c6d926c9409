"""Causal language modeling over continued sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megaptm.batch import BatchField, BatchSpec, batch_fields
from megaptm.objectives.causal import CausalLM
from megaptm.objectives.objective import Piece, Sample, SampleContext, refuse_document_mask


@dataclass(frozen=True)
class ContinuedCausalLM(CausalLM):
    """Causal language modeling for models with a recurrence cache (Transformer-XL, arXiv:1901.02860, 3.2). Each
    sequence of a batch continues the same sequence of the previous batch, across documents, which end with the `end`
    token. `reset_state` is 1 if a sequence continues no other."""

    name = "continued-causal-lm"
    unit = "lane"

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        refuse_document_mask(self, document_mask)
        return BatchSpec(
            {"": sequence}, {**batch_fields((sequence,), "tokens", "labels"), "reset_state": BatchField(())}
        )

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        made = super().make_sample(piece, context)
        return {
            "tokens": made["tokens"],
            "labels": made["labels"],
            "reset_state": np.array(piece[0].starts_lane, dtype=np.int64),
        }


TASKS = {"continued-causal-lm": ContinuedCausalLM}
OBJECTIVES = (ContinuedCausalLM(),)
