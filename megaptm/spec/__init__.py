"""Tables that describe a model: Block, Size, Family, ModelSpec. Plain data, no torch.

A family is the table of its paper. The code that builds a model reads only these fields. A value that no component
supports is an error when the model is built (`layers.layer`), never ignored.
"""

from megaptm.spec.block import (
    BIAS_BUCKETS,
    BIAS_FARTHEST,
    PATTERN_NUMBERS,
    SCORE_BIASES,
    TURNS,
    VISIBILITIES,
    Block,
    Visibility,
    visibility_of,
)
from megaptm.spec.distillation import EMBEDDED, HOOKS, LOSS, Distillation
from megaptm.spec.family import Family, Reading, change
from megaptm.spec.model import MOST_OF_PIXELS, VOCABULARY_MULTIPLE, ModelSpec, PixelStatistics, published
from megaptm.spec.size import BAND, Size

__all__ = [
    "BAND",
    "BIAS_BUCKETS",
    "BIAS_FARTHEST",
    "EMBEDDED",
    "HOOKS",
    "LOSS",
    "MOST_OF_PIXELS",
    "PATTERN_NUMBERS",
    "SCORE_BIASES",
    "TURNS",
    "VISIBILITIES",
    "VOCABULARY_MULTIPLE",
    "Block",
    "Distillation",
    "Family",
    "ModelSpec",
    "PixelStatistics",
    "Reading",
    "Size",
    "Visibility",
    "change",
    "published",
    "visibility_of",
]
