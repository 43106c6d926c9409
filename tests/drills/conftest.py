"""The run that the drills break: what it comes to when nobody does."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.drills import program

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
