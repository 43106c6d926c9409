"""Waiting times of a user: for `megaptm --help`, and from `megaptm train` to the first step.

    python benchmarks/startup.py [--rounds 3]

Times are measured from the start of the process; the fastest round counts, because other load only adds time. The first
step is the one in the run's journal. The model is configs/gpt2/tiny.yaml, on a small corpus of Python's standard
library, in one process and in two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common.options import Options

from megaptm.resilience.events import read_events

CONFIG = Path(__file__).parent.parent / "configs/gpt2/tiny.yaml"
VOCABULARY = 512


def megaptm(*arguments: object) -> None:
    command = [sys.executable, "-m", "megaptm", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr}")


def help_seconds() -> float:
    started = time.perf_counter()
    megaptm("--help")
    return time.perf_counter() - started


def make_corpus(folder: Path) -> Path:
    corpus = folder / "corpus"
    keys = {"out": corpus, "tokenizer.vocabulary": VOCABULARY, "limit_bytes": 1_000_000, "workers": 0}
    megaptm("corpus", "build", "python-library", *(f"{key}={value}" for key, value in keys.items()))
    return corpus


def first_step_seconds(corpus: Path, run: Path, *, processes: int) -> float:
    started = time.time()
    keys = {
        "run": run,
        "data.mix": json.dumps({str(corpus): 1}),
        "model.vocabulary": VOCABULARY,
        "layout.data": processes,
        "train.steps": 2,
    }
    megaptm("train", CONFIG, *(f"{key}={value}" for key, value in keys.items()))
    return next(event["time"] for event in read_events(run) if event["kind"] == "first-step") - started


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--rounds", default=3, short=1)
    options = arguments.read()
    rounds = range(options.rounds)
    waits = {"megaptm --help": [help_seconds() for _ in rounds]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = make_corpus(folder)
        for processes in (1, 2):
            waits[f"first step, processes: {processes}"] = [
                first_step_seconds(corpus, folder / f"run-{processes}-{round_index}", processes=processes)
                for round_index in rounds
            ]
    print(f"{'':<28}{'fastest s':>10}{'slowest s':>10}")
    for measurement, seconds in waits.items():
        print(f"{measurement:<28}{min(seconds):>10.2f}{max(seconds):>10.2f}")
    help_wait, one_process, two_processes = (min(seconds) for seconds in waits.values())
    print(f"METRIC help_seconds {help_wait:.3f} s goal <=0.5")
    print(f"METRIC first_step_seconds {one_process:.2f} s goal <=15")
    print(f"METRIC first_step_two_processes_seconds {two_processes:.2f} s goal <=15")


if __name__ == "__main__":
    main()
