"""Run whose corpus has a shard of random text: it skips steps with that text by itself, and logs their samples."""

from __future__ import annotations

import random
import shutil
import string
import sysconfig
from pathlib import Path

from rich.console import Console

from megaptm.resilience.events import read_events
from tests import ROOT
from tests.drills.program import SMALL, finish

STEPS = 240
RANDOM_BYTES = 150_000
"""Size of the random text: several times that of another file, so that a third of a batch is random."""
SETTINGS = (
    *(f"train.steps={STEPS}", "train.batch=48", "optimizer.decay=constant", "optimizer.lr=3e-3"),
    *("data.workers=1", "train.spikes={action: skip-step, window: 32}", "train.validate_every=null"),
)


class RandomShardError(Exception):
    """Raised if the run fails, or skips no step."""


def skipped_steps(folder: Path, *, num_ranks: int, rng: random.Random) -> list[int]:
    """Train on a corpus with a shard of random text; return the steps that the run skipped."""
    corpus, run = build_corpus(folder, rng), folder / "run"
    layout = (f"layout.data={num_ranks}", f"layout.microbatch={48 // num_ranks}")
    config = str(ROOT / "configs/gpt2/tiny.yaml")
    done = finish("train", config, f"run={run}", f"data.mix={{{corpus}: 1}}", *SMALL, *SETTINGS, *layout)
    if done.returncode:
        raise RandomShardError(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    spikes = [event for event in read_events(run) if event["kind"] == "spike" and event["skipped"]]
    if not spikes:
        raise RandomShardError("no step was skipped")
    if unlogged := [event["step"] for event in spikes if event["samples"][1] - event["samples"][0] != 47]:
        raise RandomShardError(f"the samples of steps {unlogged} are not logged")
    return [event["step"] for event in spikes]


def build_corpus(folder: Path, rng: random.Random) -> Path:
    """Build a corpus of small shards, of which one has random characters."""
    from data_pipeline import commands

    text = folder / "text"
    shutil.copytree(
        Path(sysconfig.get_path("stdlib")) / "encodings", text, ignore=shutil.ignore_patterns("__pycache__")
    )
    (text / "random.py").write_text("".join(rng.choices(string.ascii_letters + string.digits, k=RANDOM_BYTES)))
    tokenizer = ("tokenizer.kind=byte-bpe", "tokenizer.vocabulary=512")
    options = (f"out={folder / 'corpus'}", "workers=0", "validation=0.1", "shard_bytes=4096")
    commands.build([str(text / "*.py"), *options, *tokenizer], console=Console(quiet=True))
    return folder / "corpus"
