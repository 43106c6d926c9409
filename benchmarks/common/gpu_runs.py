"""Runs that `gpu.py` starts by command: one that is stopped and continued, and one for the speed as shipped."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from common.gpu_jobs import Settings
from common.gpu_shapes import SHAPES

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 512
"""Token ids of the corpus on which runs train."""


class Clock:
    """Time that is left."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


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
