"""A head registered by a test: it predicts the next token from the middle of a stack (early exit)."""

from megaptm.bricks import register_head
from megaptm.bricks.heads import LanguageHeadBrick


@register_head
class ExitBrick(LanguageHeadBrick):
    name = "exit"
    module = "megaptm.models.heads:LanguageHead"
