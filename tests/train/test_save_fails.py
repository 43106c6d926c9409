"""Run whose disk fails during a save: it continues without that checkpoint."""

import errno
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from megaptm.errors import UserError
from megaptm.launch.local import launch_ranks
from megaptm.resilience.events import read_events
from megaptm.run.folder import exclusive_start, prepare_run_folder, read_config
from tests.drills.program import arguments, checkpoints, losses
from tests.train.test_plugins import OBJECTIVES
from tests.train.test_spikes import POISON

WORKER = """
from megaptm.checkpoint import files
from megaptm.storage import RetryPolicy
from megaptm.train.worker import main
files.WRITE_RETRY = RetryPolicy(seconds=0.3, pause=0.05)
main()
"""


@dataclass
class Story:
    """Run of two ranks and nine steps, and its continuation."""

    run: Path
    code: int = -1
    saved: list[int] = field(default_factory=list)
    log: str = ""
    error: str = ""


def start_run(words, environment, processes=2):
    path, *overrides = words
    config = read_config(Path(path), overrides)
    with exclusive_start(config):
        run = prepare_run_folder(config)
        command = [sys.executable, "-c", WORKER, "--run", str(run)]
        return launch_ranks(command, processes=processes, run=run, environment=environment, threads=1)


@pytest.fixture(scope="module")
def story(real_corpus, faulty_files, tmp_path_factory):
    result = Story(tmp_path_factory.mktemp("fails") / "run")
    settings = ("layout.data=2", "checkpoint.every=2", "checkpoint.keep=9", "train.validate_every=null")
    words = arguments("gpt2", result.run, real_corpus("byte-bpe"), *settings)
    faults = (("write", "step-00000004.writing", errno.EIO, 1), ("write", "rank-00001.safetensors", errno.EIO, 0))
    faults += (("write", "step-00000006.writing", errno.EIO, -1),)
    result.code = start_run([*words, "train.steps=9"], faulty_files(*faults))
    result.saved = checkpoints(result.run)
    result.log = "".join(path.read_text() for path in (result.run / "logs").glob("rank-*.log"))
    with pytest.raises(UserError) as caught:
        start_run([*words, "train.steps=11"], faulty_files(("fsync", "step-00000011.writing", errno.EIO, -1)))
    result.error = str(caught.value)
    return result


def test_permanent_write_error_loses_one_checkpoint(story):
    """A temporary error loses none."""
    assert story.code == 0
    assert story.saved == [2, 4, 8, 9]


def test_training_continues_after_a_failed_save(story):
    assert sorted(losses(story.run)) == list(range(1, 12))


def test_failed_save_is_reported(story):
    assert "step 6 was not saved: cannot write rank-0000" in story.log
    assert "Traceback" not in story.log
    assert [event["step"] for event in read_events(story.run) if event["kind"] == "not-saved"] == [6, 11]


def test_failed_save_of_the_last_step_is_an_error(story):
    assert story.error.startswith("the run ends at step 11, which was not saved: cannot write rank-0000")
    assert "earlier checkpoints are kept" in story.error
    assert checkpoints(story.run) == [2, 4, 8, 9, 10]


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(OBJECTIVES)
    (tmp_path / "poison.py").write_text(POISON)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "run"


def test_rejected_step_after_a_failed_save_says_so(plugins, real_corpus, faulty_files):
    """The objective has no labels from step 3 on."""
    words = arguments("gpt2", plugins, real_corpus("byte-bpe"), "objective=of_mine:SILENT", "checkpoint.every=2")
    with pytest.raises(UserError, match=r"no sample has a label.*step 2 was not saved either: cannot write rank-0000"):
        start_run([*words, "train.steps=6"], faulty_files(("write", "step-00000002.writing", errno.EIO, -1)), 1)
    assert checkpoints(plugins) == []


def test_spike_after_failed_saves_ends_the_run(plugins, real_corpus, faulty_files):
    """Step 14 has a NaN, and steps 11 to 13 are not saved."""
    keys = ("checkpoint.every=1", "train.steps=18", "train.spikes.action=roll-back", "callbacks=[poison:Poison]")
    words = arguments("gpt2", plugins, real_corpus("byte-bpe"), *keys)
    with pytest.raises(UserError, match="does not skip 4 batches: 3 checkpoints after that of step 10 could not"):
        start_run(words, faulty_files(*(("write", f"step-{n:08}.writing", errno.EIO, -1) for n in (11, 12, 13))), 1)
    assert checkpoints(plugins)[-1] == 10
