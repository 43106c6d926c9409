"""The layouts, and the rank of each, whose steps are counted."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.config import Layout, OptimizerConfig
from megaptm.config.schema import AdafactorConfig
from megaptm.families import CATALOGUE
from tests.layouts.cases import ADAM


@dataclass(frozen=True)
class Case:
    family: str
    layout: Layout
    rank: int = 0
    optimizer: OptimizerConfig = ADAM

    @property
    def layers(self) -> int:
        """Of the model: one for each chunk, or two."""
        return max(2, self.layout.pipeline * self.layout.virtual)


DATA = Layout(data=4, microbatch=2, distributed_optimizer=True)
WHOLE = Layout(
    data=2, tensor=2, pipeline=2, virtual=2, sequence_parallel=True, distributed_optimizer=True, recompute="full"
)
LAST = WHOLE.processes - 2
RULES = {
    "lamb": OptimizerConfig(name="lamb", lr=1e-3, clip=1.0),
    "adafactor": OptimizerConfig(name="adafactor", lr=1e-2, adafactor=AdafactorConfig(factor_from=16)),
    "adagrad": OptimizerConfig(name="adagrad", lr=1e-2),
}
CASES = {
    **{family: Case(family, DATA) for family in CATALOGUE},
    "rotation": Case("queries and keys turned by place", DATA),
    "contrast": Case("two towers, compared over all rows", DATA),
    "contrast, first stage": Case("two towers, compared over all rows", WHOLE),
    "contrast, last stage": Case("two towers, compared over all rows", WHOLE, rank=LAST),
    "last-stage": Case("gpt2", WHOLE, rank=LAST),
    **{f"{family}, first stage": Case(family, WHOLE) for family in ("electra", "deberta-v3", "t5")},
    **{f"{family}, last stage": Case(family, WHOLE, rank=LAST) for family in ("electra", "deberta-v3", "albert", "t5")},
    **{f"bert by {name}": Case("bert", DATA, optimizer=optimizer) for name, optimizer in RULES.items()},
}
OFTEN = {
    *("gpt2", "gpt3-banded", "palm", "bert", "albert", "deberta-v3", "electra", "t5", "unilm"),
    *("contrast", "contrast, first stage", "contrast, last stage", "electra, last stage", "t5, first stage"),
    *("bert by lamb", "bert by adafactor"),
}
"""Counted in each run of the tests: one of each kind. The others are counted in the drills."""
