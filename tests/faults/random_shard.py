"""Run whose corpus has a shard of random text: it skips steps with that text, and logs their samples."""

from __future__ import annotations

import random
import re
import shutil
import string
from pathlib import Path

from megaptm.resilience.events import read_events
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import read_config
from tests.drills.program import arguments, finish
from tests.faults.outcomes import FaultError
from tests.faults.services import ENCODINGS, build_corpus

STEPS, BATCH = 240, 48
RANDOM_BYTES = 150_000
"""Size of each random text: several times that of another file, so that a third of a batch is random."""
MIN_RANDOM_SHARE = 0.1
"""Share of random samples of a batch from which on its text is random."""
SETTINGS = (
    *(f"train.steps={STEPS}", f"train.batch={BATCH}", "optimizer.decay=constant", "optimizer.lr=3e-3"),
    *("data.workers=1", "train.spikes={action: skip-step, window: 32}", "train.validate_every=null"),
)


def train_with_random_shard(folder: Path, *, num_ranks: int, rng: random.Random) -> str:
    """Train on a corpus with shards of random text; return the steps that the run skipped.

    The run must complete all steps. It must log the samples of each step that it skips. At least one must be a step
    with random text.
    """
    text, run = folder / "text", folder / "run"
    shutil.copytree(ENCODINGS, text, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("random-1.py", "random-2.py"):  # one of them may be held out for validation
        (text / name).write_text("".join(rng.choices(string.ascii_letters + string.digits, k=RANDOM_BYTES)))
    corpus = build_corpus(text, folder / "corpus")
    layout = (f"layout.data={num_ranks}", f"layout.microbatch={BATCH // num_ranks}")
    done = finish("train", *arguments("gpt2", run, corpus, *SETTINGS, *layout), seconds=900)
    if done.returncode:
        raise FaultError(f"own run, exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    spikes = [event for event in read_events(run) if event["kind"] == "spike" and event["skipped"]]
    for event in spikes:
        if [*event["samples"]] != [BATCH * (event["step"] - 1), BATCH * event["step"] - 1]:
            raise FaultError(f"the samples of the skipped step {event['step']} are logged as {event['samples']}")
    skipped = {
        event["step"]: (event["description"].partition(",")[0], random_share(run, *event["samples"]))
        for event in spikes
    }
    detail = "; ".join(f"step {step}, {spike}, {share:.0%} random" for step, (spike, share) in skipped.items())
    if not any(share >= MIN_RANDOM_SHARE for _, share in skipped.values()):
        raise FaultError(f"own run: no step with random text was skipped ({detail or 'none was skipped'})")
    return f"own run; skipped: {detail}"


def random_share(run: Path, first: int, last: int) -> float:
    """Return the share of samples that are random text, which has no spaces."""
    corpora = RunCorpora(read_config(run))
    mix = corpora.mix("train")
    texts = [corpora.tokenizer.decode(mix.sample(number)["tokens"]) for number in range(first, last + 1)]
    return sum(not re.search(r"\s", text) for text in texts) / len(texts)
