"""Initial values of CLIP."""

from __future__ import annotations

from megaptm.families.vit.initial import inverse_sqrt_pixels
from megaptm.models.initial import constant_init_std, init_std_by_width
from megaptm.spec import Size


def _scaled_residual(size: Size) -> float:
    """Return the factor of CLIP's residual projections: the inverse square root of the width times the number of
    residual sums."""
    return float((size.width * 2 * size.layers) ** -0.5)


# Released code. It says less about the image tower, which uses the same rules here.
INITIAL_RULES = (
    (r"embed\.token\.weight", constant_init_std(0.02)),
    (r"embed\.text_position\.weight", constant_init_std(0.01)),
    (r"embed\.patch\.project\.weight", lambda size: inverse_sqrt_pixels(size) / 3**0.5),
    (r"attention\.output\.weight", _scaled_residual),
    (r"ffn\.up\.weight", lambda size: float((2 * size.width) ** -0.5)),
    (r"ffn\.down\.weight", _scaled_residual),
    (r".*", init_std_by_width),
)
