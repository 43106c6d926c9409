"""Undisturbed run to compare with, and the cost of training each tiny config."""

import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.drills import program
from tests.drills.tiny_corpora import documented_corpora

__all__ = ["documented_corpora"]

STEPS = 80
# T5, because its pipeline stages and losses differ most; with dropout, so that generators must be restored as well.
DRILL = ("layout.data=2", "model.dropout=0.1", f"train.steps={STEPS}", "checkpoint.every=10")


@dataclass(frozen=True)
class UndisturbedRun:
    """Run without kills or faults."""

    corpus: Path
    losses: dict[int, list[float]]

    def arguments(self, run: Path) -> list[str]:
        """Return the arguments of the same run in another folder."""
        return program.arguments("t5", run, self.corpus, *DRILL)


@pytest.fixture(scope="session")
def undisturbed_run(tmp_path_factory, real_corpus):
    corpus, run = real_corpus("unigram"), tmp_path_factory.mktemp("undisturbed") / "run"
    done = program.finish("train", *program.arguments("t5", run, corpus, *DRILL))
    assert done.returncode == 0, done.stderr
    losses = program.losses(run)
    assert sorted(losses) == list(range(1, STEPS + 1))
    return UndisturbedRun(corpus, losses)


@dataclass
class TrainingCost:
    """Seconds of all processes of a training, from the command to the end."""

    family: str
    cpu: float = 0.0
    wall: float = 0.0


RECORD = Path(__file__).with_name("seconds.yaml")
"""Family -> CPU seconds of its tiny config's training, with date and commit; docs/families.md shows it."""
COSTS = pytest.StashKey[list[TrainingCost]]()


def pytest_terminal_summary(terminalreporter, config):
    """Print the cost of each tiny config. A killed run costs about half as much again as an undisturbed one."""
    if not (spent := config.stash.get(COSTS, [])):
        return
    terminalreporter.section("tiny configs, killed once and resumed on two processes")
    terminalreporter.write_line(f"{'family':14}{'CPU s':>8}{'wall s':>8}")
    for cost in sorted(spent, key=lambda cost: -cost.cpu):
        terminalreporter.write_line(f"{cost.family:14}{cost.cpu:8.0f}{cost.wall:8.0f}")
    if "RECORD_SECONDS" in os.environ:
        record(spent)


def record(spent):
    """Update the costs of these families in the file: `RECORD_SECONDS=1 make drills`."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=program.ROOT, capture_output=True, text=True, check=True
    )
    source = {"date": datetime.now(UTC).date(), "commit": commit.stdout.strip()}
    costs = yaml.safe_load(RECORD.read_text(encoding="utf-8")) or {}
    costs |= {cost.family: {"cpu": round(cost.cpu), **source} for cost in spent}
    RECORD.write_text(yaml.safe_dump(costs, sort_keys=True), encoding="utf-8")
