"""A run whose disk fails while it saves: it goes on without that checkpoint, and the end says what is not saved."""

import errno
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from megaptm.errors import UserError
from megaptm.launch.local import launch
from megaptm.resilience.events import read_events
from megaptm.run.folder import only_start, prepare, read_config
from tests.drills.program import arguments, checkpoints, losses

WORKER = """
from megaptm.checkpoint import files
from megaptm.storage import RetryPolicy
from megaptm.train.worker import main
files.WRITE_RETRY = RetryPolicy(seconds=0.3, pause=0.05)
main()
"""


@dataclass
class Story:
    """A run of two ranks of nine steps, and its continuation."""

    run: Path
    code: int = -1
    saved: list[int] = field(default_factory=list)
    said: str = ""
    last: str = ""


def begin(words, environment):
    path, *overrides = words
    config = read_config(Path(path), overrides)
    with only_start(config):
        run = prepare(config)
        command = [sys.executable, "-c", WORKER, "--run", str(run)]
        return launch(command, processes=2, run=run, environment=environment, threads=1)


@pytest.fixture(scope="module")
def story(real_corpus, faulty_files, tmp_path_factory):
    told = Story(tmp_path_factory.mktemp("fails") / "run")
    settings = ("layout.data=2", "checkpoint.every=2", "checkpoint.keep=9", "train.validate_every=null")
    words = arguments("gpt2", told.run, real_corpus("byte-bpe"), *settings)
    faults = (("write", "step-00000004.writing", errno.EIO, 1), ("write", "rank-00001.safetensors", errno.EIO, 0))
    faults += (("write", "step-00000006.writing", errno.EIO, -1),)
    told.code = begin([*words, "train.steps=9"], faulty_files(*faults))
    told.saved = checkpoints(told.run)
    told.said = "".join(path.read_text() for path in (told.run / "logs").glob("rank-*.log"))
    with pytest.raises(UserError) as caught:
        begin([*words, "train.steps=11"], faulty_files(("fsync", "step-00000011.writing", errno.EIO, -1)))
    told.last = str(caught.value)
    return told


def test_an_error_that_passes_costs_nothing_and_one_that_stays_one_checkpoint(story):
    assert story.code == 0
    assert story.saved == [2, 4, 8, 9]


def test_training_goes_on_without_that_checkpoint(story):
    assert sorted(losses(story.run)) == list(range(1, 12))


def test_the_checkpoint_that_is_given_up_is_told(story):
    assert "step 6 is not saved: cannot write rank-0000" in story.said
    assert "Traceback" not in story.said
    assert [event["step"] for event in read_events(story.run) if event["kind"] == "not-saved"] == [6, 11]


def test_a_last_step_that_is_not_saved_ends_with_a_sentence_and_code_2(story):
    assert story.last.startswith("the run ends at step 11, which is not saved: cannot write rank-0000")
    assert "what was saved earlier stands" in story.last
    assert checkpoints(story.run) == [2, 4, 8, 9, 10]
