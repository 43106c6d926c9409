"""Comparison of published runs with the planner: the tables of docs/planner.md and docs/planner-runs.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from megaptm.config.schema import Count, Layout, Section
from megaptm.families import CATALOGUE
from megaptm.plan import costs
from megaptm.plan.machine import Machine, load_machine
from megaptm.plan.memory import estimate_memory
from megaptm.plan.software import Software
from megaptm.plan.step import StepTime, estimate_step
from megaptm.plan.workload import Workload
from megaptm.spec import ModelSpec, Size

from .fsdp import sharded_memory, sharded_step

FILE = Path(__file__).with_suffix(".yaml")
_MPT = "MPT on A100 80 GB: mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
_BLOOM = "BLOOM's choice of a layout: chronicles-prequel.md, Rebalancing layers"
MISSES = {
    ("MPT on A100 40 GB: the same page", "70B of 2,048 on 64"),
    (_MPT, "30B of 8,192 on 8"),
    (_MPT, "760M of 512 on 8"),
    (_BLOOM, "184B, 64 heads, 8 x 6, 2 rows"),
    (_BLOOM, "178B, 104 heads, 4 x 12, 2 rows"),
}
"""(source, name) of rows for which the planner's error exceeds a fifth. Known causes are in docs/planner.md."""
RESULTS = ("seconds", "layer_milliseconds", "tflops", "hardware_tflops", "tokens_per_second", "mfu")


class Row(Section):
    """One run: a GPT-3-like decoder or BERT, its layout, and one printed result."""

    name: str
    family: Literal["gpt3", "bert"] = "gpt3"
    layers: Count
    width: Count
    heads: Count
    sequence: Count
    vocabulary: Count
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)]
    num_predicted: Count | None = None
    """Number of target positions of a sequence, for BERT's masked-token head."""
    precision: Literal["fp16", "bf16"]
    devices: Count
    batch: Count
    tensor: Count
    pipeline: Count
    virtual: Count = 1
    microbatch: Count
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    seconds: float | None = None
    layer_milliseconds: float | None = None
    tflops: float | None = None
    hardware_tflops: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None


class Source(Section):
    """Table of a paper: its machine, its software, and the common values of its rows."""

    source: str
    machine: str
    inter_node: dict[str, float] = Field(default_factory=dict)
    """Values of the network between nodes that differ from the machine's."""
    confirmed: str
    """Which values of the rows were compared with the cited page, and which are from memory."""
    note: str = ""
    common: dict[str, Any] = Field(default_factory=dict)
    open: dict[str, list[int]] = Field(default_factory=dict)
    """Option that is not printed -> values that the planner chooses from."""
    software: dict[str, Any]
    shapes: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Layers, width and heads by the name of a size, for long tables."""
    columns: list[str] = Field(default_factory=list)
    """Names of the values of rows that are lists."""
    rows: list[dict[str, Any] | list[Any]]

    @property
    def engine(self) -> Software:
        """Software of the run."""
        return Software(**{name: value for name, value in self.software.items() if name != "sharding"})

    @property
    def is_sharded(self) -> bool:
        """Whether data ranks divide weights, gradients and moments."""
        return self.software.get("sharding") == "full"

    def estimate_memory(self, work: Workload) -> float:
        """Return the planned bytes of the fullest rank."""
        return max(rank.total for rank in (sharded_memory(work) if self.is_sharded else estimate_memory(work)))

    def estimate_step(self, machine: Machine, work: Workload) -> StepTime:
        """Return the planned time of a step."""
        return sharded_step(machine, work) if self.is_sharded else estimate_step(machine, work)

    def printed(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, completed by their common values."""
        for row in self.rows:
            values = {**self.common, **(row if isinstance(row, dict) else dict(zip(self.columns, row, strict=True)))}
            if shape := values.pop("shape", None):
                name = f"{shape} of {values['sequence']:,} on {values['devices']}"
                values |= {"name": name, **self.shapes[shape]}
            yield values


@dataclass(frozen=True)
class Compared:
    """Published and planned value of a row, in the printed unit."""

    source: str
    name: str
    unit: str
    published: float
    planned: float
    error: float
    """Planned time over published time, minus one."""


def sources(path: Path = FILE) -> list[Source]:
    """Return the tables in `runs.yaml`."""
    return [Source.model_validate(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def compare_all() -> list[Compared]:
    """Compare all rows of all tables."""
    return [row for source in sources() for row in compare(source)]


UNITS = {
    "seconds": "s a step",
    "layer_milliseconds": "ms a layer",
    "tflops": "TFLOP/s",
    "hardware_tflops": "TFLOP/s, all counted",
    "tokens_per_second": "tokens/s a device",
    "mfu": "MFU",
}


def markdown(rows: list[Compared]) -> str:
    """Return the comparison as a table."""
    lines = ["| run | printed | planned | | time |", "|---|---:|---:|---|---:|"]
    source = ""
    for row in rows:
        if row.source != source:
            source = row.source
            lines.append(f"| **{source}** | | | | |")
        values = (_rounded(row.published), _rounded(row.planned))
        lines.append(f"| {row.name} | {values[0]} | {values[1]} | {UNITS[row.unit]} | {row.error:+.1%} |")
    return "\n".join(lines)


def summary(rows: list[Compared]) -> str:
    """Return a table with a row per source: the errors of the planner, and the values compared with the page."""
    lines = ["| source | runs | median | worst | compared with the page |", "|---|---:|---:|---:|---|"]
    for source in sources():
        errors = [row.error for row in rows if row.source == source.source]
        worst, middle = max(errors, key=abs), median(map(abs, errors))
        lines.append(f"| {source.source} | {len(errors)} | {middle:.1%} | {worst:+.1%} | {source.confirmed} |")
    return "\n".join(lines)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def compare(source: Source) -> Iterator[Compared]:
    """Yield the rows of one table. Of several possible layouts, the one that is planned to be fastest is used."""
    machine = load_machine(source.machine)
    machine = machine.model_copy(update={"inter_node": machine.inter_node.model_copy(update=source.inter_node)})
    for printed in source.printed():
        candidates = [
            row for row in _choices(printed, source.open) if not source.open or _is_possible(source, machine, row)
        ]
        assert candidates, f"no layout of {printed['name']} is possible"
        yield min((_compared(source, machine, row) for row in candidates), key=lambda compared: compared.error)


def work_of_row(row: Row, software: Software) -> Workload:
    """Return the workload of a published row."""
    return Workload(
        spec=ModelSpec(
            family=CATALOGUE[row.family],
            size=Size(layers=row.layers, width=row.width, heads=row.heads, ffn=4 * row.width),
            vocabulary=row.vocabulary,
            context=row.sequence,
            dropout=row.dropout,
        ),
        lengths={next(iter(CATALOGUE[row.family].stacks)): row.sequence},
        layout=Layout(
            tensor=row.tensor,
            pipeline=row.pipeline,
            virtual=row.virtual,
            data=row.devices // (row.tensor * row.pipeline),
            microbatch=row.microbatch,
            sequence_parallel=row.sequence_parallel,
            distributed_optimizer=row.distributed_optimizer,
        ),
        batch=row.batch,
        num_predicted=row.num_predicted,
        precision=row.precision,
        recompute=row.recompute,
        software=software,
    )


def _choices(values: Mapping[str, Any], free: Mapping[str, list[int]]) -> Iterator[Row]:
    names = [name for name in free if name not in values]
    for selected in product(*(free[name] for name in names)):
        yield Row.model_validate({**values, **dict(zip(names, selected, strict=True))})


def _is_possible(source: Source, machine: Machine, row: Row) -> bool:
    work = work_of_row(row, source.engine)
    layout = work.layout
    if layout.processes != row.devices or row.batch % (layout.data * layout.microbatch):
        return False
    interleaves = row.layers % (row.pipeline * row.virtual) == 0 and work.microbatches % row.pipeline == 0
    if row.virtual > 1 and (row.pipeline == 1 or not interleaves):
        return False
    return source.estimate_memory(work) <= machine.usable_bytes


def _compared(source: Source, machine: Machine, row: Row) -> Compared:
    work = work_of_row(row, source.engine)
    unit = next(name for name in RESULTS if getattr(row, name) is not None)
    published = getattr(row, unit)
    planned = _planned_value(source, machine, work, unit)
    is_time = unit in ("seconds", "layer_milliseconds")
    error = planned / published - 1 if is_time else published / planned - 1
    return Compared(source.source, row.name, unit, published, planned, error)


def _planned_value(source: Source, machine: Machine, work: Workload, unit: str) -> float:
    if unit == "layer_milliseconds":
        return costs.time_layer(machine, work, next(iter(work.lengths))).total * 1e3
    timed = source.estimate_step(machine, work)
    return {
        "seconds": timed.seconds,
        "tflops": timed.flops / timed.seconds / timed.devices / 1e12,
        "hardware_tflops": timed.hardware_flops / timed.seconds / timed.devices / 1e12,
        "tokens_per_second": work.tokens / timed.seconds / timed.devices,
        "mfu": timed.mfu,
    }[unit]
