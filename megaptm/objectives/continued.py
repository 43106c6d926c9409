"""Left to right along one text, row after row: each goes on where the row of the step before ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megaptm.batch import BatchSpec, Field, fields
from megaptm.objectives.causal import CausalLM
from megaptm.objectives.objective import Piece, Sample, SampleContext, refuse_document_mask


@dataclass(frozen=True)
class ContinuedCausalLM(CausalLM):
    """GPT's objective for models that remember (Transformer-XL, arXiv:1901.02860, 3.2): a row of the batch reads one
    text on and on, through documents, each closed by the `end` token. `begins` is 1 of the row that begins it anew."""

    name = "continued-causal-lm"
    unit = "lane"

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        refuse_document_mask(self, document_mask)
        return BatchSpec({"": sequence}, {**fields((sequence,), "tokens", "labels"), "begins": Field(())})

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        made = super().make(piece, context)
        return {"tokens": made["tokens"], "labels": made["labels"], "begins": np.array(piece[0].begins, dtype=np.int64)}
