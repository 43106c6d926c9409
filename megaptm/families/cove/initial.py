"""Initial values of CoVe: torch's defaults for LSTMs and linear layers. The paper does not specify them."""

from megaptm.models.initial import InitialRules, constant_init_std, init_std_by_width

INITIAL_RULES: InitialRules = (
    (r"embed\.token\.weight", constant_init_std(0.1)),
    (r"head\.lm\.table\.weight", init_std_by_width),
    (r"(widen|narrow)\.weight", init_std_by_width),
    (r"recurrent\..*\.weight", lambda size: float((3 * size.ffn) ** -0.5)),
)
