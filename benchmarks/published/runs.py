"""Comparison of published runs with the planner: the tables of docs/planner.md and docs/planner-runs.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import correlation, mean, median
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from megaptm.config.schema import Count, Layout, Section
from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT3
from megaptm.plan import costs
from megaptm.plan.machine import Machine, load_machine
from megaptm.plan.memory import estimate_memory
from megaptm.plan.software import Software
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload
from megaptm.spec import ModelSpec, Size

FILE = Path(__file__).with_suffix(".yaml")
OTHERS = (FILE.with_name("others.yaml"), FILE.with_name("layouts.yaml"))
"""Runs collected after the formulas: a third of their publications is held out."""
FITTED, HELD_OUT = "fitted", "held out"
MIN_LAYOUTS = 4
"""Smallest number of layouts of a training whose order is compared."""
TABLES = {"gpt3": GPT3, "bert": BERT, "llama": CATALOGUE["llama"]}
_MPT = "MPT on A100 80 GB: mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
MISSES = {
    ("MPT on A100 40 GB: the same page", "70B of 2,048 on 64"),
    (_MPT, "30B of 8,192 on 8"),
    (_MPT, "760M of 512 on 8"),
    ("MPT on H100 80 GB: the same page", "30B of 8,192 on 8"),
}
"""(source, name) of rows for which the planner's error exceeds a fifth. Known causes are in docs/planner.md."""
RESULTS = ("seconds", "layer_milliseconds", "tflops", "hardware_tflops", "tokens_per_second", "mfu")


class Row(Section):
    """One run: a decoder like GPT-3 or Llama, or BERT, its layout, and one printed result."""

    name: str
    family: Literal["gpt3", "bert", "llama"] = "gpt3"
    layers: Count
    width: Count
    heads: Count
    kv_heads: Count | None = None
    ffn: Count | None = None
    """Inner width of the feed-forward; None: four times the width."""
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
    recompute_every: Count = 1
    seconds: float | None = None
    layer_milliseconds: float | None = None
    tflops: float | None = None
    hardware_tflops: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None


class Source(Section):
    """Table of a paper: its machine, its software, and the common values of its rows."""

    source: str
    key: str = ""
    """Name of the publication, which may have several tables."""
    machine: str
    devices: int | None = None
    """Number of GPUs of a node, if it differs from the machine's."""
    memory_gigabytes_per_second: float | None = None
    """Memory bandwidth of a device, if it differs from the machine's."""
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
        """Whether weights, gradients and moments are sharded over data ranks."""
        return "sharding" in self.software

    def estimate_memory(self, work: Workload) -> float:
        """Return the planned bytes of the fullest rank."""
        return max(rank.total for rank in estimate_memory(work))

    def printed(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, completed by their common values."""
        for row in self.rows:
            values = {**self.common, **(row if isinstance(row, dict) else dict(zip(self.columns, row, strict=True)))}
            if shape := values.pop("shape", None):
                values |= self.shapes[shape]
                values["name"] = f"{shape} of {values['sequence']:,} on {values['devices']}"
            if self.key:
                values["name"] += _layout_words(values)
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


def compare_others() -> dict[str, list[Compared]]:
    """Compare all rows of the publications collected later: those that formulas and numbers were chosen with, and those
    held out."""
    read = [source for path in OTHERS for source in sources(path)]
    keys = [source.key for source in read]
    rows: dict[str, list[Compared]] = {FITTED: [], HELD_OUT: []}
    for source in read:
        rows[HELD_OUT if is_held_out(source.key, keys) else FITTED] += compare(source)
    return rows


def errors_markdown(groups: Mapping[str, list[Compared]]) -> str:
    """Return a table of the errors of some groups of rows."""
    lines = ["| runs | rows | median | mean | 95th percentile | worst |", "|---|---:|---:|---:|---:|---:|"]
    for name, rows in groups.items():
        errors = [row.error for row in rows]
        sizes = sorted(map(abs, errors))
        cells = (f"{len(rows)}", f"{median(sizes):.1%}", f"{mean(errors):+.1%}", f"{percentile_95(sizes):.1%}")
        lines.append(f"| {name} | {' | '.join(cells)} | {max(errors, key=abs):+.1%} |")
    return "\n".join(lines)


def percentile_95(ascending: list[float]) -> float:
    """Return the 95th percentile of values in ascending order."""
    return ascending[min(len(ascending) - 1, int(0.95 * len(ascending)))]


def layouts_markdown(groups: Mapping[str, list[Compared]]) -> str:
    """Return a table of the rank correlation between planned and published times of layouts of the same training on
    as many devices."""
    lines = ["| training | layouts | rank correlation |", "|---|---:|---:|"]
    tables: dict[str, list[Compared]] = {}
    for name, rows in groups.items():
        for row in rows:
            tables.setdefault(f"{name}: {row.source}: {row.name.partition(',')[0].split(', ')[0]}", []).append(row)
    for name, rows in tables.items():
        if len(rows) >= MIN_LAYOUTS:
            lines.append(f"| {name} | {len(rows)} | {rank_correlation(rows):.2f} |")
    return "\n".join(lines)


def rank_correlation(rows: list[Compared]) -> float:
    """Return Spearman's correlation between published and planned values."""
    published, planned = _ranks([row.published for row in rows]), _ranks([row.planned for row in rows])
    return correlation(published, planned)


def _ranks(values: list[float]) -> list[float]:
    """Return the rank of each value; equal values have the mean of theirs."""
    ascending = sorted(values)
    return [ascending.index(value) + (ascending.count(value) - 1) / 2 for value in values]


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


def summary(rows: list[Compared], files: Iterable[Path] = (FILE,)) -> str:
    """Return a table with a row per source: the errors of the planner, and the values compared with the page."""
    lines = ["| source | runs | median | worst | compared with the page |", "|---|---:|---:|---:|---|"]
    for source in (source for path in files for source in sources(path)):
        if not (errors := [row.error for row in rows if row.source == source.source]):
            continue
        worst, middle = max(errors, key=abs), median(map(abs, errors))
        lines.append(f"| {source.source} | {len(errors)} | {middle:.1%} | {worst:+.1%} | {source.confirmed} |")
    return "\n".join(lines)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def compare(source: Source) -> Iterator[Compared]:
    """Yield the rows of one table. Of several possible layouts, the one that is planned to be fastest is used."""
    machine = load_machine(source.machine)
    changes = {name: getattr(source, name) for name in ("devices", "memory_gigabytes_per_second")}
    machine = machine.model_copy(
        update={
            "inter_node": machine.inter_node.model_copy(update=source.inter_node),
            **{name: value for name, value in changes.items() if value is not None},
        }
    )
    for printed in source.printed():
        candidates = [
            row for row in _choices(printed, source.open) if not source.open or _is_possible(source, machine, row)
        ]
        assert candidates, f"no layout of {printed['name']} is possible"
        yield min((_compared(source, machine, row) for row in candidates), key=lambda compared: compared.error)


def work_of_row(row: Row, software: Software, *, is_sharded: bool = False) -> Workload:
    """Return the workload of a published row. `is_sharded`: whether all state is sharded over data ranks."""
    data = row.devices // (row.tensor * row.pipeline)
    return Workload(
        spec=ModelSpec(
            family=TABLES[row.family],
            size=Size(
                layers=row.layers,
                width=row.width,
                heads=row.heads,
                kv_heads=row.kv_heads,
                ffn=row.ffn or 4 * row.width,
            ),
            vocabulary=row.vocabulary,
            context=row.sequence,
            dropout=row.dropout,
        ),
        lengths={next(iter(TABLES[row.family].stacks)): row.sequence},
        layout=Layout(
            tensor=row.tensor,
            pipeline=row.pipeline,
            virtual=row.virtual,
            data=data,
            full_sharding=is_sharded and data > 1,
            microbatch=row.microbatch,
            sequence_parallel=row.sequence_parallel,
            distributed_optimizer=row.distributed_optimizer,
            recompute="full" if row.recompute == "full" else "none",
            recompute_every=row.recompute_every,
        ),
        batch=row.batch,
        num_predicted=row.num_predicted,
        precision=row.precision,
        recompute=row.recompute,
        software=software,
    )


def _layout_words(values: Mapping[str, Any]) -> str:
    """Return the printed layout, by which rows of a table differ."""
    words = [f"{name[0]}{values[name]}" for name in ("tensor", "pipeline", "microbatch") if values.get(name, 1) != 1]
    words += ["sequences too"] if values.get("sequence_parallel") else []
    words += ["recomputed"] if values.get("recompute") == "full" else []
    return f", {' '.join(words)}" if words else ""


def is_held_out(key: str, keys: Iterable[str]) -> bool:
    """Whether a publication is held out: every third one in alphabetical order. No formula and no number is chosen with
    its rows."""
    return sorted(set(keys)).index(key) % 3 == 2


def _choices(values: Mapping[str, Any], free: Mapping[str, list[int]]) -> Iterator[Row]:
    names = [name for name in free if name not in values]
    for selected in product(*(free[name] for name in names)):
        yield Row.model_validate({**values, **dict(zip(names, selected, strict=True))})


def _is_possible(source: Source, machine: Machine, row: Row) -> bool:
    work = work_of_row(row, source.engine, is_sharded=source.is_sharded)
    layout = work.layout
    if layout.processes != row.devices or row.batch % (layout.data * layout.microbatch):
        return False
    interleaves = row.layers % (row.pipeline * row.virtual) == 0 and work.microbatches % row.pipeline == 0
    if row.virtual > 1 and (row.pipeline == 1 or not interleaves):
        return False
    return source.estimate_memory(work) <= machine.usable_bytes


def _compared(source: Source, machine: Machine, row: Row) -> Compared:
    work = work_of_row(row, source.engine, is_sharded=source.is_sharded)
    unit = next(name for name in RESULTS if getattr(row, name) is not None)
    published = getattr(row, unit)
    planned = _planned_value(source, machine, work, unit)
    is_time = unit in ("seconds", "layer_milliseconds")
    error = planned / published - 1 if is_time else published / planned - 1
    return Compared(source.source, row.name, unit, published, planned, error)


def _planned_value(source: Source, machine: Machine, work: Workload, unit: str) -> float:
    if unit == "layer_milliseconds":
        return costs.time_layer(machine, work, next(iter(work.lengths))).total * 1e3
    timed = estimate_step(machine, work)
    return {
        "seconds": timed.seconds,
        "tflops": timed.flops / timed.seconds / timed.devices / 1e12,
        "hardware_tflops": timed.hardware_flops / timed.seconds / timed.devices / 1e12,
        "tokens_per_second": work.tokens / timed.seconds / timed.devices,
        "mfu": timed.mfu,
    }[unit]
