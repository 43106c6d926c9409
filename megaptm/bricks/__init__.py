"""Bricks: linear layers and costs of each module of a model, as numbers. No torch."""

from megaptm.bricks import attention, feedforward
from megaptm.bricks.brick import (
    BRICKS,
    Brick,
    LinearShape,
    MemoryTraffic,
    SavedBytes,
    attention_costs,
    brick_of,
    register,
)
from megaptm.bricks.chunk import ModelChunk, chunks
from megaptm.bricks.head import HeadBrick
from megaptm.bricks.heads import HEADS, heads, register_head
from megaptm.bricks.layer import (
    SubLayer,
    kinds,
    layer_parameters,
    memory_width,
    runs,
    sublayers,
    widening,
)

__all__ = [
    "BRICKS",
    "HEADS",
    "Brick",
    "HeadBrick",
    "LinearShape",
    "MemoryTraffic",
    "ModelChunk",
    "SavedBytes",
    "SubLayer",
    "attention",
    "attention_costs",
    "brick_of",
    "chunks",
    "feedforward",
    "heads",
    "kinds",
    "layer_parameters",
    "memory_width",
    "register",
    "register_head",
    "runs",
    "sublayers",
    "widening",
]
