"""Invalid options, and the values derived from valid ones."""

import numpy as np
import pytest

from data_pipeline.deduplicate import NearDuplicateOptions, ParagraphOptions
from megaptm.errors import UserError


def test_default_bands():
    near = NearDuplicateOptions()
    assert (near.bands, near.rows) == (21, 6)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_band_match_probability(threshold):
    near = NearDuplicateOptions(threshold=threshold)
    assert near.match_probability(threshold) >= 0.99
    assert near.match_probability(threshold / 4) < 0.1
    assert near.bands * near.rows <= near.hashes
    assert 0 < near.min_possible <= near.min_certain <= near.hashes


def test_band_match_probability_matches_simulation():
    near, rng = NearDuplicateOptions(), np.random.default_rng(0)
    same = rng.random((20_000, near.bands, near.rows)) < 0.6
    assert np.mean(same.all(axis=2).any(axis=1)) == pytest.approx(near.match_probability(0.6), abs=0.02)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"ngram": 0}, "ngram"),
        ({"hashes": 8}, "hashes"),
        ({"hashes": 127}, "hashes"),
        ({"seed": -1}, "seed"),
    ],
)
def test_out_of_range_near_options_are_rejected(options, named):
    with pytest.raises(UserError, match=f"^{named} must be"):
        NearDuplicateOptions(**options)


def test_paragraph_length_must_be_positive():
    with pytest.raises(UserError, match="characters must be 1 or more, not 0"):
        ParagraphOptions(characters=0)
