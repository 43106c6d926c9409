"""Models: an embedding, stacks of the one layer, heads."""

from megaptm.models.initial import fill, initial_value
from megaptm.models.model import Model, Part
from megaptm.spec import ModelSpec

__all__ = ["Model", "Part", "build_model", "fill", "initial_value"]


def build_model(spec: ModelSpec, part: Part | None = None) -> Model:
    """The model, or one part of it, with room for its weights but no values: `fill` or a checkpoint gives those."""
    return Model(spec, part)
