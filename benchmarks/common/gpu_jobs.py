"""Measurements of `gpu.py` in processes of their own: results of families, checks, steps of megaptm and of peers."""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.gpu_shapes import SHAPES, Shape

SHORT_FAMILIES = ("gpt2", "bert", "t5")
NUM_RECORDED_STEPS = 3
MARK = "RESULT "
"""Start of the line with which a process returns its result."""
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
    return {**result, **kernels, "build_seconds": built, "first_seconds": first, **size_of_step(spec, rows, batch)}


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
        return {**timed(step, settings), **size_of_step(spec, rows, batch)}


def size_of_step(spec: Any, rows: int, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows, tokens and FLOPs of a step."""
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
