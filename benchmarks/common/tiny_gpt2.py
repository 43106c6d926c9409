"""Runs of configs/gpt2/tiny.yaml on Python's standard library, for benchmarks of learning."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.report.curves import metric_curve
from megaptm.track.journal import read_metrics

CONFIG = Path(__file__).parents[2] / "configs/gpt2/tiny.yaml"
VOCABULARY = 2048


def build_corpus(folder: Path, *, short: bool) -> None:
    """Build the corpus of the runs in a folder, with a held-out part."""
    keys = {
        "out": folder / "corpus",
        "tokenizer.vocabulary": VOCABULARY,
        "limit_bytes": 200_000 if short else 6_000_000,
        "validation": 0.5 if short else 0.05,
    }
    _megaptm("corpus", "build", "python-library", *_words(keys))


def held_out_losses(folder: Path, name: str, steps: int, keys: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the held-out losses of a run with these config keys, by step. A run that exists is not repeated."""
    run = folder / name
    if not run.exists():
        general = {
            "run": run,
            "data.mix": json.dumps({str(folder / "corpus"): 1}),
            "model.vocabulary": VOCABULARY,
            "train.steps": steps,
            "train.validate_every": max(1, steps // 30),
            "checkpoint.every": steps,
        }
        _megaptm("train", CONFIG, *_words(general | dict(keys)))
    return metric_curve(read_metrics(run), "validation/loss")


def _words(keys: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in keys.items()]


def _megaptm(*arguments: object) -> None:
    command = [sys.executable, "-m", "megaptm", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr}")
