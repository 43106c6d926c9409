"""Samples of the left-to-right objective."""

import numpy as np

from megaptm.batch import IGNORED
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import DocumentSlice, SampleContext
from tests.objectives.samples import SPECIAL

CAUSAL = OBJECTIVES["causal-lm"]
RNG = np.random.default_rng(0)
# The end of a first document; a complete document; the start of a third, with one token more for its last label.
PIECE = [DocumentSlice(np.array([7, 8]), 1), DocumentSlice(np.array([9]), 1), DocumentSlice(np.array([11, 12, 13]), 0)]


def test_labels_stay_within_documents():
    sample = CAUSAL.make_sample(PIECE, SampleContext(SPECIAL, RNG, 7, True))
    end = SPECIAL.end
    assert sample["tokens"].tolist() == [7, 8, end, 9, end, 11, 12]
    assert sample["labels"].tolist() == [8, end, IGNORED, end, IGNORED, 12, 13]
    assert sample["document_ids"].tolist() == [1, 1, 1, 2, 2, 3, 3]
    assert sample["positions"].tolist() == [0, 1, 2, 0, 1, 0, 1]


def test_without_document_mask_documents_are_joined():
    sample = CAUSAL.make_sample(PIECE, SampleContext(SPECIAL, RNG, 7, False))
    end = SPECIAL.end
    assert sample["labels"].tolist() == [8, end, 9, end, 11, 12, 13]
    assert "document_ids" not in sample  # so that attention needs no mask
    assert sample["positions"].tolist() == list(range(7))


def test_sample_may_start_with_end_token():
    sample = CAUSAL.make_sample(
        [DocumentSlice(np.array([], dtype=int), 1), DocumentSlice(np.array([5, 6, 7]), 0)],
        SampleContext(SPECIAL, RNG, 3, True),
    )
    assert sample["tokens"].tolist() == [SPECIAL.end, 5, 6]
    assert sample["labels"].tolist() == [IGNORED, 6, 7]
