"""Initial values of CoVe: torch's defaults for LSTMs and linear layers. The paper does not specify them."""

from megaptm.models.initial import InitialRules, by_width, constant

INITIAL_RULES: InitialRules = (
    (r"embed\.token\.weight", constant(0.1)),
    (r"head\.lm\.table\.weight", by_width),
    (r"(widen|narrow)\.weight", by_width),
    (r"recurrent\..*\.weight", lambda size: float((3 * size.ffn) ** -0.5)),
)
