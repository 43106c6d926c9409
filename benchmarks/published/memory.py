"""Memory of published runs compared with the planner's: a table of docs/planner.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from megaptm.config.schema import Count, Layout, Section
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT3
from megaptm.families.t5 import T5
from megaptm.plan.memory import estimate_memory
from megaptm.plan.software import Software
from megaptm.plan.workload import Workload
from megaptm.spec import Block, Family, ModelSpec, Size, change

FILE = Path(__file__).with_suffix(".yaml")
DEVICES = 8
SOFTWARE = Software(attention="materialized", chunked_logits=False)


@dataclass(frozen=True)
class Shape:
    """Common values of all tests of one family: Megatron-LM's variant, its size, its batch."""

    family: Family
    size: Size
    vocabulary: int
    batch: int
    lengths: dict[str, int] = field(default_factory=dict)


_ENCODER = Block(position="learned")
_BERT = change(BERT, embedding={"norm": False}, stacks={"encoder": _ENCODER})
# Its decoder shares the position table of the encoder.
_T5 = change(
    T5, stacks={"encoder": _ENCODER, "decoder": change(_ENCODER, visibility="causal", position="none", cross="encoder")}
)
SHAPES = {
    "bert": Shape(_BERT, Size(layers=24, width=1024, heads=16, ffn=4096), 30522, 128, {"encoder": 512}),
    "gpt": Shape(GPT3, Size(layers=12, width=512, heads=8, ffn=2048), 50257, 32, {"decoder": 1024}),
    "t5": Shape(_T5, Size(layers=12, width=768, heads=12, ffn=3072), 29096, 32, {"encoder": 512, "decoder": 128}),
}


class Row(Section):
    """One run on a node."""

    name: str
    test: str
    """Folder of the test in Megatron-LM."""
    shape: Literal["bert", "gpt", "t5"]
    tensor: Count = 1
    pipeline: Count = 1
    virtual: Count = 1
    microbatch: Count = 4
    batch: Count | None = None
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    recompute: Literal["none", "full"] = "none"
    peak: float
    """Peak memory that torch allocated on the last rank, in megabytes."""

    def work(self) -> Workload:
        """Return the workload of the test."""
        shape = SHAPES[self.shape]
        layout = Layout(
            tensor=self.tensor,
            pipeline=self.pipeline,
            virtual=self.virtual,
            data=DEVICES // (self.tensor * self.pipeline),
            microbatch=self.microbatch,
            sequence_parallel=self.sequence_parallel,
            distributed_optimizer=self.distributed_optimizer,
        )
        return Workload(
            spec=ModelSpec(
                family=shape.family,
                size=shape.size,
                vocabulary=shape.vocabulary,
                context=max(shape.lengths.values()),
                dropout=0.1,
            ),
            lengths=shape.lengths,
            layout=layout,
            batch=self.batch or shape.batch,
            recompute=self.recompute,
            software=SOFTWARE,
        )

    def planned(self) -> float:
        """Return the planned megabytes of the last rank."""
        return estimate_memory(self.work())[-1].total / 1e6


def rows(path: Path = FILE) -> list[Row]:
    """Return the runs in `memory.yaml`."""
    return [Row.model_validate(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def markdown() -> str:
    """Return the comparison as a table."""
    lines = ["| run | recorded | planned | |", "|---|---:|---:|---:|"]
    for row in rows():
        planned = row.planned()
        lines.append(f"| {row.name} | {row.peak:,.0f} MB | {planned:,.0f} MB | {planned / row.peak - 1:+.1%} |")
    return "\n".join(lines)
