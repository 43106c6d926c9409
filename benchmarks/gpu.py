"""One GPU: are the results right, how fast is a step, and where does its time go?

    python benchmarks/gpu.py [--part families resume command steps peers] [--shapes gpt2-124m bert-large-512]
        [--minutes 9] [--entry docs/results.md]

Takes at most `--minutes` minutes on one H100, and names what was not measured in that time. Without a GPU it ends with
exit code 2. `--short` measures tiny models on the CPU, to test that the command runs (`--device cpu`).

- `families`: losses and gradient norms of three steps in fp32 of each family's tiny model, compared with the CPU
  (`recorded_families.json`); losses in bf16; kernels and modes that only a GPU runs, compared with plain ones
  (`common/gpu_checks.py`).
- `resume`: a run with `train.deterministic`, bf16 and dropout, and the same run with a stop half-way.
- `command`: speed of `megaptm train configs/gpt2/small.yaml`, with loader, documents and logging.
- `steps`: whole steps in bf16 on a synthetic batch, with optimizer; time by class of kernel, and without a kernel.
- `peers`: the same shapes with transformers, SDPA and fused AdamW under autocast.
- `compiled`: transformers with torch.compile. Only by name: a shape takes 40 to 200 s.

Each step is measured in a process of its own. Processes load and compile in parallel and take turns on the GPU. The
first run compiles all layers, and may not reach the peers in that time; the next run finds them cached. `--entry`
adds a dated entry with card and commit to a page. `--record` computes `recorded_families.json` again, on the CPU.
`--list` prints the shapes with their FLOPs and goals.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the tiny models of the tests

from common.gpu_entry import add_entry, cell, entry_lines, step_metrics  # noqa: E402
from common.gpu_shapes import SHAPES, Shape  # noqa: E402
from common.options import Options  # noqa: E402

from megaptm.plan.machine import load_machine, machine_of_device  # noqa: E402

RECORDED = Path(__file__).parent / "recorded_families.json"
PARTS = ("families", "resume", "command", "steps", "peers", "compiled")
SHORT_FAMILIES = ("gpt2", "bert", "t5")
SHORT_SHAPES = ("gpt2-124m", "t5-large", "vit-l16")
MAX_DIFFERENCE = 1e-5
"""Limit of the relative difference of losses and norms in fp32 between devices; 2.5e-6 was measured."""
MAX_BF16_DIFFERENCE = 0.2
"""Limit of the relative difference of losses in bf16 from those in fp32. ELECTRA samples other tokens."""
NUM_RECORDED_STEPS = 3
VOCABULARY = 512
"""Token ids of the corpus on which runs train."""
SECONDS_OF_A_PART = 200.0
"""Limit of one process. A compiled model of transformers may need it."""
MARK = "RESULT "
"""Start of the line with which a process returns its result."""
OUT_OF_MEMORY = {"skipped": "out of memory"}
"""Result of a process that needs more memory than the GPU has left."""
LOCK = "MEGAPTM_GPU_LOCK"
"""Environment variable with the file that processes lock while they use the GPU."""


@dataclass(frozen=True)
class Settings:
    """Options that every process gets."""

    device: str
    short: bool

    @property
    def words(self) -> list[str]:
        return ["--device", self.device, *(["--short"] if self.short else [])]


# What runs in a process of its own


def print_result(result: Mapping[str, Any]) -> None:
    """Print the result of this process, or the part of it that is known, in case that the time ends."""
    print(MARK + json.dumps(result), flush=True)


def family_results(
    names: tuple[str, ...], precision: str = "fp32", report: Callable[[dict[str, Any]], None] = lambda results: None
) -> dict[str, Any]:
    """Return losses and norms of three steps of each family's tiny model, or its error. `report` gets the results after
    each family."""
    from common.alone import join_alone

    from tests.layouts.cases import train_steps

    join_alone()
    from megaptm.config import Layout

    results: dict[str, Any] = {}
    for name in names:
        try:
            steps = train_steps(name, Layout(microbatch=4), steps=NUM_RECORDED_STEPS, precision=precision)
            results[name] = {"losses": steps["losses"], "norms": steps["norms"]}
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
            if "CUDA error" in str(error):  # all later calls fail, too
                break
        report(results)
    return results


def layered_families() -> tuple[str, ...]:
    from megaptm.families import FAMILIES
    from megaptm.spec import Family

    return tuple(name for name, table in FAMILIES.items() if isinstance(table, Family))


def spec_and_batch(shape: Shape, settings: Settings) -> tuple[Any, tuple[str, ...], str, dict[str, Any]]:
    """Return spec, heads, Hugging Face class and batch of a shape; tiny ones if the run is short."""
    import families as family_benchmark
    from common.image_batches import image_batch

    from megaptm.errors import UserError
    from megaptm.families import FAMILIES
    from megaptm.hub.counterparts import find_counterpart
    from megaptm.spec import ModelSpec

    table = FAMILIES[shape.family]
    length, rows = (64, 2) if settings.short else (shape.length, shape.rows)
    if settings.short:
        spec = family_benchmark.make_spec(shape.family, layers=2, width=64, length=length)
    else:
        size = table.sizes[shape.size]
        vocabulary = table.tokenizer.vocabulary
        spec = ModelSpec(family=table, size=size, vocabulary=vocabulary, context=length, dropout=shape.dropout)
    try:
        model = find_counterpart(replace(spec, dropout=0.0)).model
    except UserError:
        model = ""
    if not table.reads_text:
        return spec, table.heads, model, image_batch(spec, rows)
    heads = family_benchmark.compared_heads(table, model) or table.heads
    return spec, heads, model, family_benchmark.make_batch(spec, heads, rows, length, documents=shape.documents)


def flops_of(spec: Any, rows: int, batch: Mapping[str, Any]) -> int:
    from megaptm.plan.count import step_flops

    lengths = {stack: batch[f"{prefix}tokens"].shape[1] for stack, prefix in spec.family.prefixes.items()}
    predicted = batch["masked_positions"].shape[1] if "masked_positions" in batch else None
    return step_flops(spec, rows=rows, lengths=lengths, num_predicted=predicted)


@contextmanager
def locked() -> Iterator[None]:
    """Wait until no other process of this benchmark uses the GPU."""
    with open(os.environ[LOCK], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def timed(step: Callable[[], object], settings: Settings) -> dict[str, float]:
    """Return the median time of a step and the peak memory."""
    import torch

    def wait() -> None:
        if settings.device == "cuda":
            torch.cuda.synchronize()

    for _ in range(1 if settings.short else 3):
        step()
    wait()
    seconds = []
    for _ in range(2 if settings.short else 10):
        started = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() / 2**30 if settings.device == "cuda" else 0.0
    return {"seconds": statistics.median(seconds), "peak_gib": peak}


def kernel_times(step: Callable[[], object], seconds: float) -> dict[str, Any]:
    """Return the time of a step by class of kernel, the number of kernels, and the share of the step without one.

    Kernels are as long with the profiler as without it, gaps between them are not: the share is of `seconds`, the time
    without the profiler.
    """
    import torch
    from common.kernel_classes import milliseconds_by_class

    from megaptm.train.trace import busy_time, gpu_work

    num_steps = 2
    with torch.profiler.profile() as profiled:
        for _ in range(num_steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        work = gpu_work(json.loads(path.read_bytes()))
    busy = busy_time(work, start=0.0) / 1e6 / num_steps
    return {
        "milliseconds": milliseconds_by_class(work, steps=num_steps),
        "kernels": len(work) / num_steps,
        "idle_share": max(0.0, 1.0 - busy / seconds),
    }


def megaptm_result(shape: Shape, settings: Settings) -> dict[str, Any]:
    """Measure a step of megaptm's engine."""
    import families as family_benchmark
    import torch
    from common.alone import join_alone

    join_alone()
    spec, heads, _, batch = spec_and_batch(shape, settings)
    rows = len(batch["tokens"])
    if settings.device == "cuda":
        batch = {name: field.pin_memory() for name, field in batch.items()}
    started = time.perf_counter()
    compiles = settings.device == "cuda"  # as by train.compile=auto
    step = family_benchmark.megaptm_step(spec, heads, "bf16", batch, compiles=compiles)
    built = time.perf_counter() - started
    step()  # compiles on the host: others may use the GPU meanwhile
    first = time.perf_counter() - started - built
    with locked():
        if settings.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        result = timed(step, settings)
        kernels = kernel_times(step, result["seconds"]) if settings.device == "cuda" else {}
    return {**result, **kernels, "build_seconds": built, "first_seconds": first, **_size(spec, rows, batch)}


def peer_result(shape: Shape, settings: Settings, *, compiled: bool) -> dict[str, Any]:
    """Measure a step of the Hugging Face model."""
    import families as family_benchmark
    import torch
    from common.image_batches import image_inputs
    from common.peer import training_step

    spec, heads, model, batch = spec_and_batch(shape, settings)
    if not model:
        return {"skipped": "transformers has no such model"}
    import transformers

    rows = len(batch["tokens"])
    images = not spec.family.reads_text
    inputs = image_inputs(spec, batch) if images else family_benchmark.make_peer_inputs(heads, model, batch)
    inputs = {name: field.to(settings.device) if torch.is_tensor(field) else field for name, field in inputs.items()}
    config = family_benchmark.make_peer_config(spec)
    config.use_cache = False
    if (getattr(config, "pad_token_id", None) or 0) >= spec.vocabulary:
        config.pad_token_id = 0
    torch.set_float32_matmul_precision("high")

    def build() -> Callable[[], float]:
        module = getattr(transformers, model)._from_config(config).to(settings.device)
        return training_step(module, "bf16 autocast", compiled=compiled, **inputs)

    if compiled:  # compilation takes minutes on the host: others may use the GPU meanwhile
        step = build()
        step()
    with locked():
        if not compiled:
            step = build()
        return {**timed(step, settings), **_size(spec, rows, batch)}


def _size(spec: Any, rows: int, batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"rows": rows, "tokens": batch["tokens"].numel(), "flops": flops_of(spec, rows, batch)}


def measure(job: str, settings: Settings) -> dict[str, Any]:
    """Run one job in this process: `fp32` or `bf16` of the families, `checks`, or `CONTENDER:SHAPE`."""
    if job == "checks":
        from common.gpu_checks import run_checks

        problems = {}
        for name, problem in run_checks():
            problems[name] = problem
            print_result(problems)
        return problems
    if job in ("fp32", "bf16"):
        return family_results(SHORT_FAMILIES if settings.short else layered_families(), job, print_result)
    contender, _, name = job.partition(":")
    shape = next(shape for shape in SHAPES if shape.name == name)
    if contender == "megaptm":
        return megaptm_result(shape, settings)
    return peer_result(shape, settings, compiled=contender == "compiled")


# The command


class Clock:
    """Time that is left."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


def run_job(job: str, settings: Settings, clock: Clock) -> dict[str, Any]:
    """Run a job in another process and return its result, or `skipped` with the reason."""
    if not (limit := min(clock.left, SECONDS_OF_A_PART)):
        return {"skipped": "out of time"}
    command = [sys.executable, __file__, "--measure", job, *settings.words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        unfinished = last_result(output if isinstance(output, str) else output.decode(errors="replace"))
        return {"skipped": f"not finished after {limit:.0f} s"} if unfinished is None else unfinished
    if (result := last_result(done.stdout)) is not None:
        ended = {"error": f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"}
        return {**result, "process": ended} if done.returncode else result
    if "OutOfMemoryError" in done.stderr:
        return dict(OUT_OF_MEMORY)
    return {"error": done.stderr.strip()[-2000:] or f"exit code {done.returncode}"}


def last_result(output: str) -> dict[str, Any] | None:
    """Return the last result in the output of a process, if it has a complete one."""
    lines = [line for line in output.splitlines(keepends=True) if line.startswith(MARK) and line.endswith("\n")]
    return dict(json.loads(lines[-1].removeprefix(MARK))) if lines else None


def run_steps(
    contender: str, shapes: list[Shape], settings: Settings, clock: Clock, processes: int
) -> dict[str, dict[str, Any]]:
    """Return shape -> result of a contender. Processes load in parallel and take turns on the GPU. Those that lacked
    memory beside another one run again, alone."""
    jobs = {shape.name: f"{contender}:{shape.name}" for shape in shapes}
    results = dict(zip(jobs, run_jobs([*jobs.values()], settings, clock, processes), strict=True))
    for name, job in jobs.items():
        if results[name] == OUT_OF_MEMORY and processes > 1:
            results[name] = run_job(job, settings, clock)
    return results


def run_jobs(jobs: list[str], settings: Settings, clock: Clock, processes: int) -> list[dict[str, Any]]:
    """Return the results of jobs, so many of which run at the same time."""
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(partial(run_job, settings=settings, clock=clock), jobs))


def worst_difference(
    results: Mapping[str, Any],
    recorded: Mapping[str, Any],
    *,
    kinds: tuple[str, ...] = ("losses", "norms"),
    limit: float = MAX_DIFFERENCE,
) -> tuple[float, list[str]]:
    """Return the largest relative difference of a loss or norm, and a line for each family that failed or differs."""
    worst, lines = 0.0, []
    for name, values in results.items():
        if "error" in values:
            lines.append(f"{name}: {values['error'][-300:]}")
            continue
        pairs = [
            (value, expected)
            for kind in kinds
            for value, expected in zip(values[kind], recorded[name][kind], strict=True)
        ]
        difference = max(abs(value - expected) / max(abs(expected), 1e-9) for value, expected in pairs)
        worst = max(worst, difference)
        if not difference <= limit:  # also of NaN
            lines.append(f"{name}: relative difference {difference:.1e}")
    return worst, lines


def megaptm(*words: object, code: int = 0, timeout: float) -> None:
    command = [sys.executable, "-m", "megaptm", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(timeout, 1.0), cwd=ROOT, check=False)
    if done.returncode != code:
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
        )


def losses_of_run(run: Path) -> dict[int, float]:
    from megaptm.track import read_metrics

    return {record["step"]: record["loss"] for record in read_metrics(run) if "loss" in record}


def compare_restarted(folder: Path, corpus: Path, settings: Settings, clock: Clock) -> tuple[int, int]:
    """Return the number of steps of a run, and of losses that differ if it is stopped half-way and continued."""
    steps = 4 if settings.short else 20
    config = ROOT / "configs/gpt2/tiny.yaml"
    keys = [
        *("train.deterministic=true", "train.precision=bf16", "model.dropout=0.1", "train.log_every=1"),
        *(f"train.steps={steps}", "track.enabled=false", f"data.mix={json.dumps({str(corpus): 1})}"),
        *("optimizer.max_warmup_ratio=null", "train.validate_batches=1"),
    ]
    uninterrupted, restarted = folder / "uninterrupted", folder / "restarted"
    megaptm("train", config, f"run={uninterrupted}", *keys, timeout=clock.left)
    megaptm("train", config, f"run={restarted}", *keys, f"train.stop_at={steps // 2}", code=75, timeout=clock.left)
    megaptm("train", config, f"run={restarted}", *keys, timeout=clock.left)
    expected, losses = losses_of_run(uninterrupted), losses_of_run(restarted)
    if expected.keys() != set(range(1, steps + 1)):
        raise RuntimeError(f"{uninterrupted} has losses of the steps {sorted(expected)}, expected 1 to {steps}")
    return steps, sum(losses.get(step) != loss for step, loss in expected.items())


def command_arguments(run: Path, corpus: Path, settings: Settings) -> tuple[Path, list[str]]:
    """Return config and overrides of the run as shipped."""
    name, steps, every = ("tiny", 4, 2) if settings.short else ("small", 60, 20)
    keys = [f"run={run}", f"train.steps={steps}", f"train.log_every={every}", "track.enabled=false"]
    keys += [f"data.mix={json.dumps({str(corpus): 1})}", "train.validate_batches=1", "checkpoint.every=1000000"]
    if not settings.short:
        rows = SHAPES[0].rows
        # The ids are those of a small tokenizer; the model has the published vocabulary.
        keys += ["devices=1", f"train.batch={rows}", f"layout.microbatch={rows}", "model.dropout=0.0"]
        keys += ["model.vocabulary=50257", "optimizer.max_warmup_ratio=0.1"]
    return ROOT / f"configs/gpt2/{name}.yaml", keys


def command_speed(folder: Path, corpus: Path, settings: Settings, clock: Clock) -> dict[str, float]:
    """Return tokens/s of `megaptm train` as shipped, and the seconds from the command to the first step."""
    from megaptm.resilience.events import read_events
    from megaptm.track import read_metrics

    run = folder / "command"
    config, keys = command_arguments(run, corpus, settings)
    megaptm("train", config, *keys, timeout=clock.left)
    last = [record for record in read_metrics(run) if "tokens_per_second" in record][-1]
    first = next(event["seconds"] for event in read_events(run) if event["kind"] == "first-step")
    return {"tokens_per_second": last["tokens_per_second"], "first_step_seconds": first}


def card() -> tuple[str, float | None]:
    """Return the name of the GPU, and its peak FLOP/s in bf16 if a machine file has it."""
    import torch

    if not torch.cuda.is_available():
        return "CPU", None
    name = torch.cuda.get_device_name()
    machine = machine_of_device(name)
    return name, None if machine is None or "bf16" not in machine.teraflops else machine.peak_flops("bf16")


def commit() -> str:
    """Return the commit of the working tree, with `+` if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def record() -> None:
    """Write the values of the CPU. Other processors differ in the seventh digit."""
    results = family_results(layered_families())
    if failed := {name: values["error"] for name, values in results.items() if "error" in values}:
        raise SystemExit(f"these families failed: {failed}")
    RECORDED.write_text(json.dumps(results, indent=1) + "\n")


def list_shapes(shapes: list[Shape], settings: Settings) -> None:
    """Print each shape with the peer, the FLOPs of a step, and the goal with its MFU on an H100. Check the config of
    the part `command`."""
    from megaptm.config import load

    load(*command_arguments(Path("run"), Path("corpus"), settings))
    peak = load_machine("h100-80g").peak_flops("bf16")
    print(f"{'':<24}{'batch':>12}{'TFLOP':>8}{'goal':>20}{'MFU':>7}  peer")
    for shape in shapes:
        spec, _, model, batch = spec_and_batch(shape, settings)
        size = _size(spec, len(batch["tokens"]), batch)
        seconds = (size["tokens"] if shape.unit == "tokens" else size["rows"]) / shape.goal
        print(
            f"{shape.name:<24}{f'{shape.rows} x {shape.length}':>12}{size['flops'] / 1e12:>8.1f}"
            f"{f'{shape.goal:,} {shape.unit}/s':>20}{size['flops'] / seconds / peak:>7.1%}  {model or '-'}",
            flush=True,
        )


def main() -> int:
    arguments = Options(__doc__)
    arguments.add("--minutes", default=9.0, short=60.0)
    arguments.add("--device", default="cuda", short="cpu", choices=("cuda", "cpu"))
    arguments.add("--shapes", default=[shape.name for shape in SHAPES], short=list(SHORT_SHAPES), nargs="+", type=str)
    arguments.add_argument("--part", default=list(PARTS[:-1]), nargs="+", choices=PARTS)
    arguments.add_argument(
        "--processes",
        type=int,
        default=2,
        help="processes that load and compile at the same time; they share the memory",
    )
    arguments.add_argument("--entry", type=Path, help="page to which a dated entry is added")
    arguments.add_argument("--record", action="store_true", help="compute recorded_families.json on the CPU, and end")
    arguments.add_argument("--list", action="store_true", help="print the shapes, and end")
    arguments.add_argument("--measure", help="used by the command itself: run one job in this process")
    options = arguments.read()
    settings = Settings(options.device, options.short)
    if options.record or settings.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded, also in processes
    if options.record:
        record()
        return 0
    if unknown := set(options.shapes) - {shape.name for shape in SHAPES}:
        arguments.error(f"--shapes: unknown {', '.join(sorted(unknown))}; known: {', '.join(s.name for s in SHAPES)}")
    shapes = [shape for shape in SHAPES if shape.name in options.shapes]
    if options.list:
        list_shapes(shapes, settings)
        return 0
    import torch

    if settings.device == "cuda" and not torch.cuda.is_available():
        print(
            "PyTorch finds no GPU on this machine: this benchmark needs one (--short runs tiny models on the CPU).",
            file=sys.stderr,
        )
        return 2
    if options.measure:
        print_result(measure(options.measure, settings))
        return 0
    return compare(options, shapes, settings)


def compare(options: Any, shapes: list[Shape], settings: Settings) -> int:
    """Run the parts, and print tables and metrics. Return the exit code: 1 if something failed."""
    clock = Clock(options.minutes)
    name, peak = card()
    metrics: list[str] = []
    notes: list[str] = []
    failures: list[str] = []
    contenders: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="megaptm-gpu-") as folder_name:
        folder = Path(folder_name)
        os.environ[LOCK] = str(folder / "lock")
        for part in (part for part in PARTS if part in options.part):
            print(f"== {part} ({clock.left:.0f} s left)", flush=True)
            started, known = time.monotonic(), len(failures)
            try:
                if part == "families":
                    jobs = ["fp32", "bf16", *(["checks"] if settings.device == "cuda" else [])]
                    results = run_jobs(jobs, settings, clock, len(jobs))
                    for job, result in zip(jobs, results, strict=True):
                        report_results(job, result, metrics, notes, failures)
                elif part in ("resume", "command"):
                    run_commands(part, folder, settings, clock, metrics, notes)
                else:
                    contender = {"steps": "megaptm", "peers": "transformers"}.get(part, part)
                    chosen = shapes if part == "steps" else [shape for shape in shapes if shape.has_peer]
                    contenders[contender] = run_steps(contender, chosen, settings, clock, options.processes)
                    for shape in chosen:
                        result = contenders[contender][shape.name]
                        print(f"{shape.name}: {cell(shape, result, peak)}", flush=True)
                        if "error" in result and contender == "megaptm":
                            failures.append(f"{shape.name}: {result['error']}")
            except subprocess.TimeoutExpired:
                notes.append(f"{part}: not measured, out of time")
            except Exception:
                failures.append(f"{part}: {traceback.format_exc()[-2000:]}")
            for failure in failures[known:]:
                print(f"failed: {failure}", flush=True)
            print(f"   {time.monotonic() - started:.0f} s", flush=True)
    for shape in shapes:
        peers = {key: results for key, results in contenders.items() if key != "megaptm"}
        metrics += step_metrics(
            shape, contenders.get("megaptm", {}).get(shape.name, {}), peers, is_full=not settings.short
        )
    import torch

    title = f"{datetime.date.today().isoformat()}, commit {commit()}, one {name}"
    notes.insert(
        0, f"torch {torch.__version__}, bf16; `python benchmarks/gpu.py{' --short' if settings.short else ''}`"
    )
    lines = entry_lines(title, notes, shapes, contenders, peak)
    print("\n".join(["", *lines, ""]))
    if options.entry is not None:
        add_entry(options.entry, lines)
    print("\n".join(metrics), flush=True)
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def report_results(
    job: str, results: dict[str, Any], metrics: list[str], notes: list[str], failures: list[str]
) -> None:
    """Report the families in fp32 or bf16, or the checks."""
    if "skipped" in results:
        notes.append(f"families, {job}: not measured, {results['skipped']}")
        return
    if "error" in results:
        failures.append(f"families, {job}: {results['error']}")
        return
    if job == "checks":
        failures += [f"{name}: {problem}" for name, problem in results.items() if problem]
        notes.append(f"{len(results)} checks of kernels and modes that only a GPU runs: {', '.join(results)}")
        return
    recorded = json.loads(RECORDED.read_text())
    if job == "bf16":
        worst, lines = worst_difference(results, recorded, kinds=("losses",), limit=MAX_BF16_DIFFERENCE)
        failures += [f"bf16: {line}" for line in lines]
        notes.append(f"{len(results)} families, three steps in bf16: losses within {worst:.1e} of those in fp32")
        return
    worst, lines = worst_difference(results, recorded)
    failures += lines
    metrics.append(f"METRIC families_worst_difference {worst / 1e-6:.2f} ppm goal <={MAX_DIFFERENCE / 1e-6:.0f}")
    notes.append(
        f"{len(results)} families, three steps in fp32: losses and gradient norms within {worst:.1e} of the CPU's"
    )


def build_corpus(folder: Path, clock: Clock) -> Path:
    """Build a corpus of Python's standard library, and return its folder. As plain text: to read the library's web
    pages, the corpus pipeline needs packages that training does not."""
    corpus, text = folder / "corpus", folder / "text"
    if not corpus.exists():
        text.mkdir(exist_ok=True)
        for module in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            (text / f"{module.stem}.txt").write_bytes(module.read_bytes())
        keys = (f"out={corpus}", f"tokenizer.vocabulary={VOCABULARY}", "limit_bytes=1000000", "workers=0")
        megaptm("corpus", "build", text, *keys, timeout=clock.left)
    return corpus


def run_commands(
    part: str, folder: Path, settings: Settings, clock: Clock, metrics: list[str], notes: list[str]
) -> None:
    """Run the parts that start `megaptm train`."""
    corpus = build_corpus(folder, clock)
    if part == "resume":
        steps, different = compare_restarted(folder, corpus, settings, clock)
        metrics.append(f"METRIC resume_different_losses {different} steps goal <=0")
        notes.append(f"{steps} steps with a stop half-way, `train.deterministic`: {different} losses differ")
        return
    command = command_speed(folder, corpus, settings, clock)
    metrics.append(f"METRIC command_first_step_seconds {command['first_step_seconds']:.1f} s goal <=15")
    if not settings.short:
        metrics.append(f"METRIC command_gpt2_124m {command['tokens_per_second']:.0f} tokens/s goal >={SHAPES[0].goal}")
    notes.append(
        f"`megaptm train configs/gpt2/{'tiny' if settings.short else 'small'}.yaml`: "
        f"{command['tokens_per_second']:,.0f} tokens/s, first step after {command['first_step_seconds']:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
