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
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the tiny models of the tests

from common.gpu_entry import add_entry, cell, entry_lines, step_metrics  # noqa: E402
from common.gpu_jobs import (  # noqa: E402
    LOCK,
    MARK,
    Settings,
    family_results,
    layered_families,
    measure,
    print_result,
    size_of_step,
    spec_and_batch,
)
from common.gpu_runs import Clock, build_corpus, command_arguments, command_speed, compare_restarted  # noqa: E402
from common.gpu_shapes import SHAPES, Shape  # noqa: E402
from common.options import Options  # noqa: E402

from megaptm.plan.machine import load_machine, machine_of_device  # noqa: E402

RECORDED = Path(__file__).parent / "recorded_families.json"
PARTS = ("families", "resume", "command", "steps", "peers", "compiled")
SHORT_SHAPES = ("gpt2-124m", "t5-large", "vit-l16")
MAX_DIFFERENCE = 1e-5
"""Limit of the relative difference of losses and norms in fp32 between devices; 2.5e-6 was measured."""
MAX_BF16_DIFFERENCE = 0.2
"""Limit of the relative difference of losses in bf16 from those in fp32. ELECTRA samples other tokens."""
SECONDS_OF_A_PART = 200.0
"""Limit of one process. A compiled model of transformers may need it."""
OUT_OF_MEMORY = {"skipped": "out of memory"}
"""Result of a process that needs more memory than the GPU has left."""


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
    from megaptm.config import load_config

    load_config(*command_arguments(Path("run"), Path("corpus"), settings))
    peak = load_machine("h100-80g").peak_flops("bf16")
    print(f"{'':<24}{'batch':>12}{'TFLOP':>8}{'goal':>20}{'MFU':>7}  peer")
    for shape in shapes:
        spec, _, model, batch = spec_and_batch(shape, settings)
        size = size_of_step(spec, len(batch["tokens"]), batch)
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
