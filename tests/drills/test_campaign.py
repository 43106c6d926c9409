"""Runs that are killed at random times end with the same bits as undisturbed runs, for families with different
states."""

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
from megaptm.checkpoint.store import CheckpointStore
from tests.drills.killed_runs import children_seconds
from tests.drills.program import arguments, checkpoints, family_of, finish, last_step, losses, start, wait_for
from tests.processes import command_of, environment_of, is_alive, send, survivors

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]

KILLS, STEPS = 3, 80
MAX_STEPS = 20
"""Maximum steps between two kills, so that the last kill is before the end."""
VICTIMS = ("launcher", "rank 0", "rank 1", "loader", "all")
CLIP = (
    *("model.layers=2", "model.width=32", "model.heads=2", "model.ffn=64", "model.stacks={text: {layers: 1}}"),
    *("train.batch=16", "layout.microbatch=8", "train.threads=1", "train.log_every=1", "track.enabled=false"),
    "train.restarts=0",  # each kill ends the job
    "train.validate_batches=1",
)
FAMILIES = {
    "gpt2": ("model.dropout=0.1",),
    "bert": ("model.dropout=0.1",),
    "t5": ("model.dropout=0.1",),
    "electra": ("model.dropout=0.1",),  # two stacks
    "transformer-xl": ("model.dropout=0.1", "model.cutoffs=[128, 320]"),  # recurrence cache
    "clip": (),  # images with random crops, and texts
}
TOKENIZERS = {"gpt2": "byte-bpe", "bert": "wordpiece", "t5": "unigram", "electra": "wordpiece"}


@dataclass
class Campaign:
    """Results of a run that was killed several times, and of the same run undisturbed."""

    killed: list[str] = field(default_factory=list)
    """For example `rank 1 after step 12`."""
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
            commands.run_build_command([str(text), f"out={out}", *options], console=Console(quiet=True))
        return out

    return build


def train_arguments(family: str, run: Path, corpus: Path) -> list[str]:
    more = (f"train.steps={STEPS}", "checkpoint.every=6", "layout.data=2", "data.workers=1", *FAMILIES[family])
    words = arguments(family, run, corpus, *more)
    if family == "clip":
        words = [words[0], f"run={run}", f"data.mix={{{corpus}: 1}}", *CLIP, *more]
    return words


def kill_at_random(words: list[str], run: Path, rng: random.Random, outcome: Campaign) -> float:
    """Start the run and kill one of its processes, or all; return the CPU seconds of processes that were not waited
    for."""
    job = start("train", *words)
    before = len(losses_in_order(run)) if run.exists() else 0
    kill_step, pause, victim = before + rng.randint(2, MAX_STEPS), rng.uniform(0.0, 0.2), rng.choice(VICTIMS)
    wait_for(lambda: run.exists() and len(losses_in_order(run)) >= kill_step, job, seconds=900)
    time.sleep(pause)
    processes = family_of(job)
    cpu_seconds = sum(sum(process.cpu_times()[:2]) for process in processes if is_alive(process))
    outcome.killed.append(f"{victim} after step {last_step(run)}")
    send(select_victims(victim, processes), 9)
    if victim in ("launcher", "all"):
        job.kill()
    job.communicate(timeout=240)
    outcome.survivors += survivors(processes)
    return cpu_seconds if victim in ("launcher", "all") else 0.0


def select_victims(victim, processes):
    ranks = {
        environment_of(process).get("RANK"): process
        for process in processes
        if process.ppid() not in {p.pid for p in processes}
    }
    ranks = {rank: process for rank, process in ranks.items() if "megaptm.train.worker" in command_of(process)}
    loaders = [process for process in processes if process.ppid() in {rank.pid for rank in ranks.values()}]
    return {"launcher": [], "rank 0": [ranks["0"]], "rank 1": [ranks["1"]], "loader": loaders[:1], "all": processes}[
        victim
    ]


def losses_in_order(run: Path) -> list[float]:
    return [loss for each in losses(run).values() for loss in each]


def hash_files(run: Path) -> list[str]:
    return [file.sha256 for file in CheckpointStore(run).load(STEPS).files]


@pytest.fixture(scope="module", params=FAMILIES)
def campaign(request, corpus_of, tmp_path_factory) -> Campaign:
    family, result, cpu_before = request.param, Campaign(), children_seconds()
    corpus, folder = corpus_of(family), tmp_path_factory.mktemp("campaign")
    done = finish("train", *train_arguments(family, folder / "undisturbed", corpus), seconds=900)
    assert done.returncode == 0, done.stderr
    result.undisturbed, result.undisturbed_hashes = losses(folder / "undisturbed"), hash_files(folder / "undisturbed")
    run, rng, cpu_of_killed = folder / "killed", random.Random(f"33 {family}"), 0.0
    words = train_arguments(family, run, corpus)
    for _ in range(KILLS):
        cpu_of_killed += kill_at_random(words, run, rng, result)
    done = finish("train", *words, seconds=900)
    assert done.returncode == 0, done.stderr
    assert checkpoints(run)[-1] == STEPS
    result.losses, result.hashes = losses(run), hash_files(run)
    print(f"\n{family}: {', '.join(result.killed)}; {children_seconds() - cpu_before + cpu_of_killed:.0f} CPU s")
    return result


def test_losses_equal_undisturbed_run(campaign):
    assert {step: {*each} for step, each in campaign.losses.items()} == {
        step: {*each} for step, each in campaign.undisturbed.items()
    }


def test_last_checkpoint_is_bit_identical(campaign):
    assert campaign.hashes == campaign.undisturbed_hashes


def test_no_process_survives_a_kill(campaign):
    assert campaign.survivors == []


def test_all_planned_kills_happened(campaign):
    assert len(campaign.killed) == KILLS
