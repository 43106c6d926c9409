"""Run that reads a corpus of random text for one step: it skips this step, and logs its samples."""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path

from megaptm.resilience.events import read_events
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import read_config
from tests.drills.program import arguments, finish
from tests.faults.outcomes import FaultError
from tests.faults.services import build_corpus
from tests.train.runs import write_text

STEPS, BATCH, WINDOW = 220, 48, 32
RANDOM_STEP = 200
"""Step with random text, counted from 1 as in the log. The window of earlier steps is full, and their loss constant.

The step is certainly a spike. No model has a lower loss of random letters than the logarithm of their number, 4.1. The
text before consists of a few words, so that the losses of the window are below 1 and differ by hundredths. A spike
needs 6 standard deviations.
"""
RANDOM_FILES, RANDOM_BYTES = 40, 4000
"""Number and size of the random files: some are held out for validation, and the others fill more than a batch."""
SETTINGS = (
    *(f"train.steps={STEPS}", f"train.batch={BATCH}", "optimizer.decay=constant", "optimizer.lr=3e-3"),
    *("data.workers=1", f"train.spikes={{action: skip-step, window: {WINDOW}}}", "train.validate_every=null"),
)


def train_with_random_shard(folder: Path, *, tokenizer: Path, num_ranks: int, rng: random.Random) -> str:
    """Train on a corpus of simple text, and in one step on random text; return the steps that the run skipped.

    The run must complete all steps. It must log the samples of each step that it skips, and skip the random one.
    """
    write_text(folder / "text", documents=200)
    (folder / "letters").mkdir()
    for number in range(RANDOM_FILES):
        letters = "".join(rng.choices(string.ascii_letters + string.digits, k=RANDOM_BYTES))
        (folder / f"letters/{number}.txt").write_text(letters)
    text, letters = (
        str(build_corpus(folder / name / "*.txt", folder / f"{name}-corpus", tokenizer=tokenizer))
        for name in ("text", "letters")
    )
    run, step = folder / "run", RANDOM_STEP - 1
    objective = {
        "text": {"task": "causal-lm", "corpora": [text], "share": {0: 1, step: 0, step + 1: 1}},
        "random": {"task": "causal-lm", "corpora": [letters], "share": {0: 0, step: 1, step + 1: 0}},
    }
    mix = f"data.mix={json.dumps({text: 1, letters: 1})}"
    layout = (f"layout.data={num_ranks}", f"layout.microbatch={BATCH // num_ranks}")
    words = arguments("gpt2", run, text, *SETTINGS, *layout, mix, f"objective={objective}")
    done = finish("train", *words, seconds=900)
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
    if RANDOM_STEP not in skipped or skipped[RANDOM_STEP][1] < 1:
        raise FaultError(f"own run: the step with random text was not skipped ({detail or 'none was skipped'})")
    return f"own run; skipped: {detail}"


def random_share(run: Path, first: int, last: int) -> float:
    """Return the share of samples that are random text, which has no spaces."""
    corpora = RunCorpora(read_config(run))
    mix = corpora.mix("train")
    texts = [corpora.tokenizer.decode(mix.sample(number)["tokens"]) for number in range(first, last + 1)]
    return sum(not re.search(r"\s", text) for text in texts) / len(texts)
