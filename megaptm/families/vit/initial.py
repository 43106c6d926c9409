"""Initial values of ViT."""

from __future__ import annotations

from megaptm.families.vit.spec import CHANNELS
from megaptm.models.initial import constant_init_std, glorot_init_std
from megaptm.spec import Size


def inverse_sqrt_pixels(size: Size) -> float:
    """Return the standard deviation of the initial patch projection: the inverse square root of the number of values of
    a patch."""
    return float((CHANNELS * size.inputs["patch"] ** 2) ** -0.5)


# Released code: layer projections by Glorot, patch projection by fan-in; zeros for class token, mask vector and label
# projection.
INITIAL_RULES = (
    (r"embed\.patch\.project\.weight", inverse_sqrt_pixels),
    (r"embed\.patch\.(image|mask)\.weight", constant_init_std(0.0)),
    (r"embed\.position\.weight", constant_init_std(0.02)),
    (r"head\..*\.weight", constant_init_std(0.0)),
    (r"ffn\.(up|down)\.weight", glorot_init_std(lambda size: size.width, lambda size: size.ffn)),
    (r".*", glorot_init_std(lambda size: size.width, lambda size: size.heads * size.key_width)),
)
