"""The run that the drills break: what it comes to when nobody does; and what those of tiny configs have cost."""

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
# T5, whose pipeline stages and losses are the least like the others'; dropout, so that generators must continue, too.
DRILL = ("layout.data=2", "model.dropout=0.1", f"train.steps={STEPS}", "checkpoint.every=10")


@dataclass(frozen=True)
class Unbroken:
    """The run that nothing happens to."""

    corpus: Path
    losses: dict[int, list[float]]

    def arguments(self, run: Path) -> list[str]:
        """Of the same run in another folder."""
        return program.arguments("t5", run, self.corpus, *DRILL)


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory, real_corpus):
    corpus, run = real_corpus("unigram"), tmp_path_factory.mktemp("unbroken") / "run"
    done = program.finish("train", *program.arguments("t5", run, corpus, *DRILL))
    assert done.returncode == 0, done.stderr
    losses = program.losses(run)
    assert sorted(losses) == list(range(1, STEPS + 1))
    return Unbroken(corpus, losses)


@dataclass
class Spent:
    """Seconds of a training, of all its processes, from the command to the end."""

    family: str
    cpu: float = 0.0
    wall: float = 0.0


RECORD = Path(__file__).with_name("seconds.yaml")
"""Family -> CPU seconds of its tiny config's training, with date and commit; docs/families.md shows it."""
SPENT = pytest.StashKey[list[Spent]]()


def pytest_terminal_summary(terminalreporter, config):
    """What the tiny configs took, the dearest first: about half as much again as those that nobody kills."""
    if not (spent := config.stash.get(SPENT, [])):
        return
    terminalreporter.section("tiny configs, killed once and resumed on two processes")
    terminalreporter.write_line(f"{'family':14}{'CPU s':>8}{'wall s':>8}")
    for one in sorted(spent, key=lambda one: -one.cpu):
        terminalreporter.write_line(f"{one.family:14}{one.cpu:8.0f}{one.wall:8.0f}")
    if "RECORD_SECONDS" in os.environ:
        record(spent)


def record(spent):
    """Keeps what was seen, beside what is known of other families: `RECORD_SECONDS=1 make drills`."""
    told = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=program.ROOT, capture_output=True, text=True, check=True
    )
    seen = {"date": datetime.now(UTC).date(), "commit": told.stdout.strip()}
    known = yaml.safe_load(RECORD.read_text(encoding="utf-8")) or {}
    known |= {one.family: {"cpu": round(one.cpu), **seen} for one in spent}
    RECORD.write_text(yaml.safe_dump(known, sort_keys=True), encoding="utf-8")
