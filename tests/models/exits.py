"""A head registered by a test: it predicts the next token from the middle of a stack (early exit)."""

from megaptm.models.head_costs import HEADS, LanguageHeadCosts


class ExitCosts(LanguageHeadCosts):
    name = "exit"
    module = "megaptm.models.heads:LanguageHead"


HEADS[ExitCosts.name] = ExitCosts
