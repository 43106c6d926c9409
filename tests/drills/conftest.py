"""The run that the drills break: what it comes to when nobody does; and what those of tiny configs have cost."""

from dataclasses import dataclass
from pathlib import Path

import pytest

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


SPENT = pytest.StashKey[list[Spent]]()


def pytest_terminal_summary(terminalreporter, config):
    """What the tiny configs took, the dearest first: about half as much again as those that nobody kills."""
    if not (spent := config.stash.get(SPENT, [])):
        return
    terminalreporter.section("tiny configs, killed once and resumed on two processes")
    terminalreporter.write_line(f"{'family':14}{'CPU s':>8}{'wall s':>8}")
    for one in sorted(spent, key=lambda one: -one.cpu):
        terminalreporter.write_line(f"{one.family:14}{one.cpu:8.0f}{one.wall:8.0f}")
