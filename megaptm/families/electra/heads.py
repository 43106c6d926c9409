"""Costs of the heads of ELECTRA."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.bricks import HeadBrick, Map


class ReplacedHeadBrick(HeadBrick):
    """Replaced token detection (ELECTRA, arXiv:2003.10555, section 2): linear layer and one logit per position."""

    name = "replaced-token"
    module = "megaptm.families.electra.head_modules:ReplacedHead"
    answers = "replaced"
    projects = False
    judges_draws = True

    @property
    def maps(self) -> Mapping[str, Map]:
        width = self.width
        return {"transform": Map(width, width, True), "classify": Map(width, 1, True)}


HEADS = (ReplacedHeadBrick,)
