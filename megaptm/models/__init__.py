"""Models: an embedding, stacks of the one layer, heads."""

from megaptm.bricks import ModelChunk
from megaptm.models.initial import fill, initial_value
from megaptm.models.model import Model, even_chunks
from megaptm.spec import ModelSpec

__all__ = ["Model", "build_model", "even_chunks", "fill", "initial_value"]


def build_model(spec: ModelSpec, chunk: ModelChunk | None = None) -> Model:
    """The model, or one chunk of it, with room for its weights but no values: `fill` or a checkpoint gives those."""
    return Model(spec, chunk)
