"""The layouts, and the rank of each, whose steps are counted."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.config import Layout


@dataclass(frozen=True)
class Case:
    family: str
    layout: Layout
    rank: int = 0


DATA = Layout(data=4, microbatch=2, distributed_optimizer=True)
WHOLE = Layout(
    data=2, tensor=2, pipeline=2, virtual=2, sequence_parallel=True, distributed_optimizer=True, recompute="full"
)
CASES = {
    "gpt2": Case("gpt2", DATA),
    "bert": Case("bert", DATA),
    "t5": Case("t5", DATA),
    "bands": Case("gpt3-banded", DATA),
    "rotation": Case("queries and keys turned by place", DATA),
    "contrast": Case("two towers, compared over all rows", DATA),
    "contrast, first stage": Case("two towers, compared over all rows", WHOLE),
    "contrast, last stage": Case("two towers, compared over all rows", WHOLE, rank=WHOLE.processes - 2),
    "last-stage": Case("gpt2", WHOLE, rank=WHOLE.processes - 2),
}
