"""Training from an object store: the run that it is on a folder, through faults; saved when it cannot go on."""

import os
import signal
import sysconfig
import time
from pathlib import Path

import pytest
from rich.console import Console

from megaptm.errors import EXIT_CONTINUE
from megaptm.resilience.events import read_events
from megaptm.storage import RetryPolicy
from tests.data.corpora import publish
from tests.drills.program import arguments, checkpoints, finish, last_step, losses, resumed_at, start, wait_for

pytestmark = pytest.mark.drill

STEPS = 400
# A minute is what is promised: OUTAGE_SECONDS=60 pytest tests/drills/test_remote.py -k waits
OUTAGE = float(os.environ.get("OUTAGE_SECONDS", "8"))
URL = "s3://corpora/real"
KINDS = ("reset", "error", "stall", "truncate", "corrupt")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, s3):
    """A folder of small shards, several windows of which the run reads; there is a copy at `URL`."""
    from data_pipeline import commands

    folder = tmp_path_factory.mktemp("remote") / "corpus"
    source = Path(sysconfig.get_path("stdlib")) / "encodings" / "*.py"
    tokenizer = ("tokenizer.kind=byte-bpe", "tokenizer.vocabulary=512")
    build = [str(source), f"out={folder}", "workers=0", "validation=0.1", "shard_bytes=4096", *tokenizer]
    commands.build(build, console=Console(quiet=True))
    publish(folder, URL, RetryPolicy(seconds=20, deadline=5))
    return folder


def words(place, folder, *more):
    """The run's folder, and the words that train it."""
    run = folder / "run"
    options = [
        f"train.steps={STEPS}",
        "train.validate_every=null",
        "data.workers=1",
        f"data.cache_dir={folder / 'cache'}",
    ]
    return run, ["train", *arguments("gpt2", run, place, *options, *more)]


@pytest.fixture(scope="module")
def unbroken(corpus, tmp_path_factory):
    """The losses of the run on the folder."""
    run, local = words(corpus, tmp_path_factory.mktemp("local"))
    done = finish(*local)
    assert done.returncode == 0, done.stderr
    return losses(run)


def test_every_kind_of_fault_leaves_the_run_what_it_is(unbroken, tmp_path, faults):
    for kind in KINDS:
        faults.inject(kind, match=r"GET .*\.(tar|npy)$", times=2, seconds=10.0)
    run, remote = words(URL, tmp_path, "data.timeout_seconds=120")
    done = finish(*remote)
    assert done.returncode == 0, done.stderr
    assert losses(run) == unbroken
    assert set(faults.injected) == set(KINDS)


def stands(run):
    """The step at which a run without its server stands, what was read ahead being used up."""
    stood = 0
    while (step := last_step(run)) != stood:
        stood = step
        time.sleep(2.0)
    return stood


@pytest.mark.parametrize("layout", ["layout.data=1", "layout.data=2"])
def test_a_run_waits_for_its_server(unbroken, tmp_path, faults, layout):
    run, remote = words(URL, tmp_path, "data.timeout_seconds=300", layout)
    job = start(*remote)
    wait_for(lambda: last_step(run) >= 3, job)
    faults.down()
    stood = stands(run)
    time.sleep(OUTAGE)
    assert last_step(run) == stood < STEPS
    faults.up()
    said = job.communicate(timeout=240)
    assert job.returncode == 0, said
    assert {step: each[-1] for step, each in losses(run).items()} == pytest.approx(
        {step: each[-1] for step, each in unbroken.items()}, rel=1e-5
    )
    told = "".join(said) + "".join(path.read_text() for path in (run / "logs").glob("*.log"))
    assert f"{URL}/train-" in told
    assert "does not answer" in told
    assert "answers again after" in told


@pytest.mark.parametrize("layout", ["layout.data=1", "layout.data=2"])
def test_a_run_whose_patience_ends_is_saved_and_goes_on_later(unbroken, tmp_path, faults, layout):
    run, remote = words(URL, tmp_path, "data.timeout_seconds=3", layout)
    job = start(*remote)
    wait_for(lambda: last_step(run) >= 3, job)
    faults.down()
    out, err = job.communicate(timeout=240)
    assert job.returncode == 2, (out, err)
    [sentence] = [line for line in err.splitlines() if line.startswith("error: ")]
    step = last_step(run)
    assert 3 <= step < STEPS
    assert sentence.startswith(f"error: {URL}/train-")
    assert sentence.endswith(f"check that its server responds, and start again; the run is saved at step {step}.")
    assert "Traceback" not in err
    assert checkpoints(run) == [step]
    assert [event["code"] for event in read_events(run) if event["kind"] == "exit"] == [2]
    faults.up()
    done = finish(*remote)
    assert done.returncode == 0, done.stderr
    assert resumed_at(run) == [step]
    assert {step: each[-1] for step, each in losses(run).items()} == pytest.approx(
        {step: each[-1] for step, each in unbroken.items()}, rel=1e-5
    )
    assert [event["code"] for event in read_events(run) if event["kind"] == "exit"][-1] == 0


@pytest.mark.parametrize("reader", [["data.workers=0"], ["data.workers=1"], ["data.workers=1", "layout.data=2"]])
def test_a_run_asked_to_stop_while_its_server_is_silent_is_saved_and_goes_on_later(unbroken, tmp_path, faults, reader):
    run, remote = words(URL, tmp_path, "data.timeout_seconds=1500", *reader)
    job = start(*remote)
    wait_for(lambda: last_step(run) >= 3, job)
    faults.inject("stall", match="GET|HEAD", times=1_000_000, seconds=3600.0)
    assert stands(run) < STEPS
    assert faults.injected
    job.send_signal(signal.SIGTERM)
    said = job.communicate(timeout=120)
    assert job.returncode == EXIT_CONTINUE, said
    step = last_step(run)
    assert 3 <= step < STEPS
    assert checkpoints(run) == [step]
    faults.faults.clear()
    done = finish(*remote)
    assert done.returncode == 0, done.stderr
    assert resumed_at(run) == [step]
    assert {step: each[-1] for step, each in losses(run).items()} == pytest.approx(
        {step: each[-1] for step, each in unbroken.items()}, rel=1e-5
    )
