"""Initial values of ELMo, as in its released code."""

from megaptm.families.elmo.spec import character_sizes
from megaptm.models.initial import InitialRules, Std, constant_init_std, glorot_init_std, init_std_by_width
from megaptm.spec import Size


def _uniform_std(limit: float) -> Std:
    """Return the standard deviation of ELMo's initial weights that are uniform between -limit and limit."""
    return constant_init_std(limit / 3**0.5)


def _inverse_sqrt_filters(size: Size) -> float:
    """Return the standard deviation of ELMo's initial projection: the inverse square root of the number of filters."""
    return float(sum(filters for _, filters in character_sizes(size).filters) ** -0.5)


# Word projections by fan-in, recurrent ones by Glorot of a joint kernel, which is two projections here.
INITIAL_RULES: InitialRules = (
    (r"token\.characters\.weight", _uniform_std(1.0)),
    (r"token\.filters\.\d+\.weight", _uniform_std(0.05)),
    (r"highway\.\d+\.(carry|transform)\.weight", _inverse_sqrt_filters),
    (r"token\.out\.weight", _inverse_sqrt_filters),
    (r"recurrent\.(input|state)\.weight", glorot_init_std(lambda size: 2 * size.width, lambda size: 4 * size.ffn)),
    (r"recurrent\.projection\.weight", glorot_init_std(lambda size: size.ffn, lambda size: size.width)),
    (r"head\.bidirectional-lm\.table\.weight", init_std_by_width),
)
