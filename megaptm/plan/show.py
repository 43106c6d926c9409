"""Tables of a plan, a search and a dry run for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table
from rich.text import Text

from megaptm.config import Layout
from megaptm.console import Console
from megaptm.plan.checkpoint_cost import CheckpointCost
from megaptm.plan.dry_run_report import DryRunReport
from megaptm.plan.plan import Plan
from megaptm.plan.search import Candidate, LayoutSearch
from megaptm.plan.step import PARTS

GIB = 2**30


def show_plan(plan: Plan, console: Console) -> None:
    """Print the whole plan of a run."""
    work = plan.work
    step = f"{work.tokens:,} tokens and {work.flops:.3g} FLOPs a step ({work.flops / work.tokens:.3g} a token)"
    _print_model(plan, console, step)
    for costs in work.extra_costs:
        console.print(costs.summary(work))
    console.print(f"{format_layout(work.layout)}; {work.precision}, batch {work.batch:,}\n", highlight=False)
    _print_memory(plan, console)
    _print_step(plan, console)
    _print_run(plan, console)


def show_phase_plans(plans: Sequence[Plan], console: Console) -> None:
    """Print the plans of the phases of a run: what they share, a row for each, and the memory of the fullest."""
    _print_model(plans[0], console, plans[0].work.precision)
    if plans[0].work.extra_costs:
        _print_by_phase(plans, _describe_extra_costs, console)
    _print_by_phase(plans, lambda plan: format_layout(plan.work.layout), console)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # nine titles in 80 columns
    for name in ("steps", "batch", "sequence", "tokens", "memory", "a step", "MFU", "time", "device\nhours"):
        table.add_column(name, justify="left" if name == "steps" else "right", no_wrap=True)
    for plan in plans:
        table.add_row(
            plan.steps_title.removeprefix("steps ").replace(" to ", "-"),
            f"{plan.work.batch:,}",
            "+".join(f"{length:,}" for length in plan.work.lengths.values()),
            f"{plan.tokens:.3g}",
            f"{plan.memory_share:.0%}",
            format_seconds(plan.step.seconds),
            f"{plan.step.mfu:.1%}",
            format_days(plan.days_with_failures),
            f"{plan.device_hours:,.0f}",
        )
    tokens, days = sum(plan.tokens for plan in plans), sum(plan.days_with_failures for plan in plans)
    hours = f"{sum(plan.device_hours for plan in plans):,.0f}"
    table.add_row("together", "", "", f"{tokens:.3g}", "", "", "", format_days(days), hours, style="bold")
    console.print(table)
    fullest = max(plans, key=lambda plan: plan.memory_share)
    console.print(f"\nMost memory is needed in {fullest.steps_title}:")
    _print_memory(fullest, console)
    console.print(
        "The time includes checkpoints and failures. --json has these and the parts of a step for each phase.",
        highlight=False,
    )


def _describe_extra_costs(plan: Plan) -> str:
    return "; ".join(costs.summary(plan.work) for costs in plan.work.extra_costs)


def _print_model(plan: Plan, console: Console, details: str) -> None:
    machines = f"{plan.nodes:,} x {plan.machine.devices} {plan.machine.name}"
    console.print(Text(f"{plan.title} on {machines}", style="bold"))
    console.print(f"{plan.parameters:,} parameters; {details}")
    if plan.has_published_vocabulary:
        console.print(
            f"vocabulary of {plan.work.spec.vocabulary:,}, as published; model.vocabulary=N plans that of a corpus",
            highlight=False,
        )


def _print_by_phase(plans: Sequence[Plan], describe: Callable[[Plan], str], console: Console) -> None:
    """Print a description of the plans once if they share it, otherwise for each phase."""
    texts = {plan.steps_title: describe(plan) for plan in plans}
    shared = len({*texts.values()}) == 1
    for title, text in [*texts.items()][: 1 if shared else None]:
        console.print(text if shared else f"{title}: {text}", highlight=False)


def format_layout(layout: Layout) -> str:
    """Return a layout as text: `data 8 x tensor 8 x pipeline 16 (3 chunks each), micro-batch 1, ...`."""
    words = layout.axes_text
    words += f" ({layout.virtual} chunks each)" if layout.virtual > 1 else ""
    if layout.layers_by_chunk is not None:
        words += f" of {', '.join(map(str, layout.layers_by_chunk))} layers"
    words += f", micro-batch {layout.microbatch}"
    words += ", sequence parallel" if layout.sequence_parallel else ""
    if layout.full_sharding:
        words += ", full sharding"
    elif layout.distributed_optimizer:
        words += ", distributed optimizer"
    if layout.recompute == "none":
        return words
    every = "" if layout.recompute_every == 1 else f" of every {layout.recompute_every} layers"
    return f"{words}, {layout.recompute} recomputation{every}"


def _print_memory(plan: Plan, console: Console) -> None:
    usable = plan.machine.usable_bytes
    stages = {0: "first", plan.fullest_stage: "fullest", len(plan.memory) - 1: "last"}
    if len(plan.memory) == 1:
        stages = {0: "every rank"}
    table = Table(title="Memory of a rank, GiB", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for stage, name in sorted(stages.items()):
        table.add_column(name if len(plan.memory) == 1 else f"stage {stage} ({name})", justify="right")
    for part in _parts_of_memory(plan):
        table.add_row(part, *(f"{plan.memory[stage].parts()[part] / GIB:.2f}" for stage in sorted(stages)))
    table.add_row("total", *(f"{plan.memory[stage].total / GIB:.2f}" for stage in sorted(stages)), style="bold")
    console.print(table)
    fullest = plan.memory[plan.fullest_stage]
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    console.print(
        Text(
            f"{verdict}: {fullest.total / GIB:.1f} of {usable / GIB:.1f} usable GiB of {plan.machine.name} "
            f"({plan.memory_share:.0%})\n",
            style="green" if plan.fits else "bold red",
        )
    )


def _parts_of_memory(plan: Plan) -> list[str]:
    """Return the parts of the planned memory to show. Parts that few models have are left out if this model does not
    have them."""
    rare = {"comparison", "recurrence_cache", "update", *plan.memory[0].extra}
    return [
        part for part in plan.memory[0].parts() if part not in rare or any(stage.parts()[part] for stage in plan.memory)
    ]


def _print_step(plan: Plan, console: Console) -> None:
    step = plan.step
    table = Table(title="Time of a step", title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column(justify="right")
    table.add_column(justify="right")
    for part, seconds in step.parts().items():
        if seconds:
            table.add_row(PARTS[part], format_seconds(seconds), f"{seconds / step.seconds:.1%}")
    table.add_row("a step", format_seconds(step.seconds), "", style="bold")
    console.print(table)
    if len(step.stages) > 1:
        slowest, fastest = max(step.stages), min(step.stages)
        console.print(
            f"A micro-batch takes {format_seconds(slowest)} on the slowest stage ({step.stages.index(slowest)}), "
            f"{format_seconds(fastest)} on the fastest ({step.stages.index(fastest)})",
            highlight=False,
        )
    console.print(
        f"{plan.work.tokens / step.seconds:,.0f} tokens/s; {step.mfu:.1%} of peak FLOP/s (MFU), {step.hfu:.1%} "
        "including recomputation (HFU)\n"
    )


def _print_run(plan: Plan, console: Console) -> None:
    saving, failures = plan.saving, plan.failures
    rows = {
        "steps": f"{plan.steps:,}, {plan.tokens:,} tokens",
        "time": (
            f"{format_days(plan.days)} of steps, {format_days(plan.days_with_failures)} with checkpoints and failures"
        ),
        "device hours": f"{plan.device_hours:,.0f}",
        "checkpoint": (
            f"{saving.bytes / 1e9:,.1f} GB in {format_seconds(saving.seconds)}{_saving_note(saving)}, every "
            f"{failures.every:,} steps; least time is lost with one every {failures.best_interval_steps:,}"
        ),
        "failures": f"{failures.expected:,.1f} expected, one in {failures.mtbf_hours:,.0f} hours",
        "goodput": f"{failures.goodput:.1%}; {failures.best_goodput:.1%} at the best interval",
    }
    table = Table(title="The run", title_justify="left", box=None, pad_edge=False, show_header=False)
    for name, words in rows.items():
        table.add_row(name, words)
    console.print(table)


def _saving_note(saving: CheckpointCost) -> str:
    if not saving.host_bytes:
        return ""
    return (
        f" (training waits {format_seconds(saving.stall)}; {saving.host_bytes / GIB:,.1f} GiB of host memory on each "
        "node)"
    )


def show_search(result: LayoutSearch, console: Console, *, usable: float) -> None:
    """Print the result of a search: the fastest layouts that fit, the smallest faster ones that do not fit, and reasons
    of rejections."""
    num_legal = len(result.fitting) + len(result.too_large)
    console.print(f"{num_legal:,} legal layouts, {len(result.fitting):,} fit; the fastest:", highlight=False)
    console.print(_candidate_table(result.fitting[:10]))
    if any(candidate.layout.layers_by_chunk is not None for candidate in result.fitting[:10]):
        console.print("* layers cut by FLOPs (layout.layers_per_stage=auto)", highlight=False)
    best = result.fitting[0].step.seconds if result.fitting else float("inf")
    faster = sorted(
        (candidate for candidate in result.too_large if candidate.step.seconds < best),
        key=lambda candidate: candidate.bytes,
    )[:3]
    if faster:
        console.print(f"\nFaster layouts that need more than the usable {usable / GIB:.1f} GiB:", highlight=False)
        console.print(_candidate_table(faster))
    if result.refused:
        console.print("\nRejected:")
        for reason, number in result.refused.most_common(6):
            console.print(f"  {number:,}  {reason}", highlight=False)
    console.print()


def show_dry_run(dry: DryRunReport, console: Console) -> None:
    """Print the counts of a dry run's ranks, and the planned ones."""
    table = Table(title="\nDry run", title_justify="left", box=None, pad_edge=False)
    for name in ("rank", "stage", "parameters", "planned", "FLOPs of a micro-batch"):
        table.add_column(name, justify="right")
    for rank, planned in zip(dry.ranks, dry.planned, strict=True):
        table.add_row(str(rank.rank), str(rank.stage), f"{rank.parameters:,}", f"{planned:,}", f"{rank.flops:,}")
    console.print(table)
    if dry.counted_flops is not None:
        more = dry.counted_flops - dry.flops
        console.print(
            f"A step: {dry.counted_flops:,} FLOPs counted, {dry.flops:,} planned ({more:+,}: vocabulary padding)"
        )
    console.print(
        Text("agrees" if dry.agrees_with_plan else "DIFFERS", style="green" if dry.agrees_with_plan else "bold red")
    )


def _candidate_table(candidates: Iterable[Candidate]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # ten titles in 80 columns
    candidates = [*candidates]
    context = ("context",) if any(candidate.layout.context > 1 for candidate in candidates) else ()
    columns = ("tensor", "pipeline", "virtual", "microbatch", "recompute", "step", "MFU", "bubble", "GiB")
    for name in ("data", *context, *columns):
        table.add_column(name, justify="right")
    for candidate in candidates:
        layout = candidate.layout
        table.add_row(
            *(str(getattr(layout, name)) for name in ("data", *context, "tensor")),
            f"{layout.pipeline}{'' if layout.layers_by_chunk is None else '*'}",
            str(layout.virtual),
            str(layout.microbatch),
            "-" if layout.recompute == "none" else layout.recompute,
            format_seconds(candidate.step.seconds),
            f"{candidate.step.mfu:.1%}",
            f"{candidate.step.bubble / candidate.step.seconds:.1%}",
            f"{candidate.bytes / GIB:.1f}",
        )
    return table


def format_seconds(seconds: float) -> str:
    """Format planned seconds as `18.05 s` or `292 ms`."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"


def format_days(days: float) -> str:
    for unit, length in (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0)):
        if days * length >= 1:
            return f"{days * length:,.1f} {unit}"
    return f"{days * 86400:,.2g} seconds"
