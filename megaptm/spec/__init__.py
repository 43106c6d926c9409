"""Tables that describe a model: Block, Size, Family, ModelSpec. Plain data, no torch.

A family is the table of its paper. The code that builds a model reads only these fields. A value that no component
supports is an error when the model is built (`layers.check_block`), never ignored.
"""

from megaptm.spec.attention import (
    ROPE_OPTIONS,
    ROPE_TURNS,
    AttentionSpec,
    BandedSpec,
    PatternSpec,
    PositiveInt,
    RopeParameters,
    SlidingWindowSpec,
)
from megaptm.spec.block import (
    BIAS_BUCKETS,
    BIAS_FARTHEST,
    SCORE_BIASES,
    VISIBILITIES,
    Block,
    FFNSpec,
    NormSpec,
    ResidualSpec,
    SharingSpec,
    Visibility,
    attention_options,
    block_value_errors,
    find_visibility,
    with_attention_options,
)
from megaptm.spec.direction import can_change_direction, with_direction
from megaptm.spec.family import (
    EMBEDDED,
    EmbeddingSpec,
    Family,
    HeadInput,
    InitSpec,
    LossSpec,
    OutputSpec,
    TokenizerSpec,
    TransformSpec,
    change,
)
from megaptm.spec.inputs import InputSpec, SampledInput, SegmentInput, TokenInput
from megaptm.spec.layer import LayerSpec
from megaptm.spec.layerless import LayerlessFamily, LayerlessSpec
from megaptm.spec.model import VOCABULARY_MULTIPLE, ModelSpec, published_spec
from megaptm.spec.size import BAND, Size

__all__ = [
    "BAND",
    "BIAS_BUCKETS",
    "BIAS_FARTHEST",
    "EMBEDDED",
    "ROPE_OPTIONS",
    "ROPE_TURNS",
    "SCORE_BIASES",
    "VISIBILITIES",
    "VOCABULARY_MULTIPLE",
    "AttentionSpec",
    "BandedSpec",
    "Block",
    "EmbeddingSpec",
    "FFNSpec",
    "Family",
    "HeadInput",
    "InitSpec",
    "InputSpec",
    "LayerSpec",
    "LayerlessFamily",
    "LayerlessSpec",
    "LossSpec",
    "ModelSpec",
    "NormSpec",
    "OutputSpec",
    "PatternSpec",
    "PositiveInt",
    "ResidualSpec",
    "RopeParameters",
    "SampledInput",
    "SegmentInput",
    "SharingSpec",
    "Size",
    "SlidingWindowSpec",
    "TokenInput",
    "TokenizerSpec",
    "TransformSpec",
    "Visibility",
    "attention_options",
    "block_value_errors",
    "can_change_direction",
    "change",
    "find_visibility",
    "published_spec",
    "with_attention_options",
    "with_direction",
]
