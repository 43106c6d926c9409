"""Run whose corpus has a shard of random text: it skips steps with that text by itself, and logs their samples."""

from __future__ import annotations

import random
import shutil
import string
from pathlib import Path

from megaptm.resilience.events import read_events
from tests.drills.program import arguments, finish
from tests.faults.services import ENCODINGS, build_corpus

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
    text, run = folder / "text", folder / "run"
    shutil.copytree(ENCODINGS, text, ignore=shutil.ignore_patterns("__pycache__"))
    (text / "random.py").write_text("".join(rng.choices(string.ascii_letters + string.digits, k=RANDOM_BYTES)))
    corpus = build_corpus(text, folder / "corpus")
    layout = (f"layout.data={num_ranks}", f"layout.microbatch={48 // num_ranks}")
    done = finish("train", *arguments("gpt2", run, corpus, *SETTINGS, *layout))
    if done.returncode:
        raise RandomShardError(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    spikes = [event for event in read_events(run) if event["kind"] == "spike" and event["skipped"]]
    if not spikes:
        raise RandomShardError("no step was skipped")
    if unlogged := [event["step"] for event in spikes if event["samples"][1] - event["samples"][0] != 47]:
        raise RandomShardError(f"the samples of steps {unlogged} are not logged")
    return [event["step"] for event in spikes]
