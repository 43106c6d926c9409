"""Random kills of families whose states differ most: each run ends with the bits of a run that nobody disturbed."""

from __future__ import annotations

import random
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from data_pipeline import commands
from megaptm.checkpoint.store import Store
from tests.drills.lives import children_seconds
from tests.drills.program import arguments, checkpoints, family_of, finish, last_step, losses, start, wait_for
from tests.processes import command_of, environment_of, is_alive, send, survivors

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]

KILLS, STEPS = 3, 80
MOST_STEPS = 20
"""Between two kills, so that the last one is before the end."""
VICTIMS = ("launcher", "rank 0", "rank 1", "loader", "all")
CLIP = (
    *("model.layers=2", "model.width=32", "model.heads=2", "model.ffn=64", "model.stacks={text: {layers: 1}}"),
    *("train.batch=16", "layout.microbatch=8", "train.threads=1", "train.log_every=1", "track.enabled=false"),
    "train.validate_batches=1",
)
FAMILIES = {
    "gpt2": ("model.dropout=0.1",),
    "bert": ("model.dropout=0.1",),
    "t5": ("model.dropout=0.1",),
    "electra": ("model.dropout=0.1",),  # two stacks
    "transformer-xl": ("model.dropout=0.1", "model.cutoffs=[128, 320]"),  # remembers the step before
    "clip": (),  # two towers and images, cropped at random
}
TOKENIZERS = {"gpt2": "byte-bpe", "bert": "wordpiece", "t5": "unigram", "electra": "wordpiece"}


@dataclass
class Campaign:
    """A run that was killed several times, and the same run undisturbed."""

    killed: list[str] = field(default_factory=list)
    """`rank 1 after step 12` and so on."""
    losses: dict[int, list[float]] = field(default_factory=dict)
    undisturbed: dict[int, list[float]] = field(default_factory=dict)
    hashes: list[str] = field(default_factory=list)
    """sha256 of each file of the last checkpoint."""
    undisturbed_hashes: list[str] = field(default_factory=list)
    survivors: list[object] = field(default_factory=list)


@pytest.fixture(scope="module")
def corpus_of(real_corpus: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def build(family: str) -> Path:
        if family in TOKENIZERS:
            return real_corpus(TOKENIZERS[family])
        out = tmp_path_factory.mktemp(family) / "corpus"
        if family == "clip":
            finish(
                "corpus", "images", "shapes", f"out={out}", "texts=true", "validation=0.1", "tokenizer.vocabulary=320"
            )
        else:
            text = Path(sysconfig.get_path("stdlib")) / "email"
            options = ("workers=0", "validation=0.1", "tokenizer.kind=words", "tokenizer.vocabulary=512")
            commands.build([str(text), f"out={out}", *options], console=Console(quiet=True))
        return out

    return build


def words_of(family: str, run: Path, corpus: Path) -> list[str]:
    more = (f"train.steps={STEPS}", "checkpoint.every=6", "layout.data=2", "data.workers=1", *FAMILIES[family])
    words = arguments(family, run, corpus, *more)
    if family == "clip":
        words = [words[0], f"run={run}", f"data.mix={{{corpus}: 1}}", *CLIP, *more]
    return words


def kill_at_random(words: list[str], run: Path, draw: random.Random, found: Campaign) -> float:
    """Start the run and kill one of its processes, or all; CPU seconds that nobody waits for."""
    job = start("train", *words)
    before = len(losses_in_order(run)) if run.exists() else 0
    wanted, pause, victim = before + draw.randint(2, MOST_STEPS), draw.uniform(0.0, 0.2), draw.choice(VICTIMS)
    wait_for(lambda: run.exists() and len(losses_in_order(run)) >= wanted, job)
    time.sleep(pause)
    everybody = family_of(job)
    used = sum(sum(process.cpu_times()[:2]) for process in everybody if is_alive(process))
    found.killed.append(f"{victim} after step {last_step(run)}")
    send(chosen(victim, everybody), 9)
    if victim in ("launcher", "all"):
        job.kill()
    job.communicate(timeout=240)
    found.survivors += survivors(everybody)
    return used if victim in ("launcher", "all") else 0.0


def chosen(victim, everybody):
    ranks = {environment_of(one).get("RANK"): one for one in everybody if one.ppid() not in {p.pid for p in everybody}}
    ranks = {rank: one for rank, one in ranks.items() if "megaptm.train.worker" in command_of(one)}
    loaders = [one for one in everybody if one.ppid() in {rank.pid for rank in ranks.values()}]
    return {"launcher": [], "rank 0": [ranks["0"]], "rank 1": [ranks["1"]], "loader": loaders[:1], "all": everybody}[
        victim
    ]


def losses_in_order(run: Path) -> list[float]:
    return [loss for each in losses(run).values() for loss in each]


def hashes_of(run: Path) -> list[str]:
    return [file.sha256 for file in Store(run).load(STEPS).files]


@pytest.fixture(scope="module", params=FAMILIES)
def campaign(request, corpus_of, tmp_path_factory) -> Campaign:
    family, found, begun = request.param, Campaign(), children_seconds()
    corpus, place = corpus_of(family), tmp_path_factory.mktemp("campaign")
    done = finish("train", *words_of(family, place / "undisturbed", corpus), seconds=900)
    assert done.returncode == 0, done.stderr
    found.undisturbed, found.undisturbed_hashes = losses(place / "undisturbed"), hashes_of(place / "undisturbed")
    run, draw, lost = place / "killed", random.Random(f"33 {family}"), 0.0
    words = words_of(family, run, corpus)
    for _ in range(KILLS):
        lost += kill_at_random(words, run, draw, found)
    done = finish("train", *words, seconds=900)
    assert done.returncode == 0, done.stderr
    assert checkpoints(run)[-1] == STEPS
    found.losses, found.hashes = losses(run), hashes_of(run)
    print(f"\n{family}: {', '.join(found.killed)}; {children_seconds() - begun + lost:.0f} CPU s")
    return found


def test_every_loss_is_that_of_the_undisturbed_run(campaign):
    assert {step: {*each} for step, each in campaign.losses.items()} == {
        step: {*each} for step, each in campaign.undisturbed.items()
    }


def test_the_last_checkpoint_has_the_same_bytes(campaign):
    assert campaign.hashes == campaign.undisturbed_hashes


def test_no_process_outlives_a_kill(campaign):
    assert campaign.survivors == []


def test_there_were_as_many_kills_as_planned(campaign):
    assert len(campaign.killed) == KILLS
