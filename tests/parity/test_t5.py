"""Relative positions of T5 against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from megaptm.layers.positions import bias_buckets


@pytest.mark.parametrize("bidirectional", [True, False])
def test_distance_buckets_equal_hugging_face(bidirectional: bool) -> None:
    distances = torch.arange(700)[None, :] - torch.arange(300)[:, None]
    expected = T5Attention._relative_position_bucket(distances, bidirectional, 32, 128)
    assert bias_buckets(distances, bidirectional=bidirectional).equal(expected)
