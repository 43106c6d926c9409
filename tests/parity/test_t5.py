"""Our T5 against `transformers.T5ForConditionalGeneration`."""

from __future__ import annotations

import torch
from transformers.models.t5.modeling_t5 import T5Attention

from megaptm.layers.positions import bias_buckets


def test_distances_fall_in_the_same_buckets() -> None:
    distances = torch.arange(700)[None, :] - torch.arange(300)[:, None]
    for bidirectional in (True, False):
        expected = T5Attention._relative_position_bucket(distances, bidirectional, 32, 128)
        assert bias_buckets(300, 700, bidirectional=bidirectional).equal(expected)
