"""Training from an object store equals training from a folder, also with faults; after a long outage the run is
saved."""

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
# The guarantee is a minute: OUTAGE_SECONDS=60 pytest tests/drills/test_remote.py -k waits
OUTAGE = float(os.environ.get("OUTAGE_SECONDS", "8"))
URL = "s3://corpora/real"
KINDS = ("reset", "error", "stall", "truncate", "corrupt")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, s3):
    """Folder of small shards, which a run reads in several windows, with a copy at `URL`."""
    from data_pipeline import commands

    folder = tmp_path_factory.mktemp("remote") / "corpus"
    source = Path(sysconfig.get_path("stdlib")) / "encodings" / "*.py"
    tokenizer = ("tokenizer.kind=byte-bpe", "tokenizer.vocabulary=512")
    build = [str(source), f"out={folder}", "workers=0", "validation=0.1", "shard_bytes=4096", *tokenizer]
    commands.run_build_command(build, console=Console(quiet=True))
    publish(folder, URL, RetryPolicy(seconds=20, deadline=5))
    return folder


def train_command(corpus_location, folder, *more):
    """Return the run folder and the command that trains it."""
    run = folder / "run"
    options = [
        f"train.steps={STEPS}",
        "train.validate_every=null",
        "data.workers=1",
        f"data.cache_dir={folder / 'cache'}",
    ]
    return run, ["train", *arguments("gpt2", run, corpus_location, *options, *more)]


@pytest.fixture(scope="module")
def undisturbed_run(corpus, tmp_path_factory):
    """Losses of the run on the folder."""
    run, local = train_command(corpus, tmp_path_factory.mktemp("local"))
    done = finish(*local)
    assert done.returncode == 0, done.stderr
    return losses(run)


def test_faults_do_not_change_losses(undisturbed_run, tmp_path, faults):
    for kind in KINDS:
        faults.inject(kind, match=r"GET .*\.(tar|npy)$", times=2, seconds=10.0)
    run, remote = train_command(URL, tmp_path, "data.timeout_seconds=120")
    done = finish(*remote)
    assert done.returncode == 0, done.stderr
    assert losses(run) == undisturbed_run
    assert set(faults.injected) == set(KINDS)


def wait_until_stalled(run):
    """Wait until a run without its server has used the data that it had read; return its step."""
    last = 0
    while (step := last_step(run)) != last:
        last = step
        time.sleep(2.0)
    return last


@pytest.mark.parametrize("layout", ["layout.data=1", "layout.data=2"])
def test_run_waits_for_its_server(undisturbed_run, tmp_path, faults, layout):
    run, remote = train_command(URL, tmp_path, "data.timeout_seconds=300", layout)
    job = start(*remote)
    wait_for(lambda: last_step(run) >= 3, job)
    faults.down()
    step_at_outage = wait_until_stalled(run)
    time.sleep(OUTAGE)
    assert last_step(run) == step_at_outage < STEPS
    faults.up()
    output = job.communicate(timeout=240)
    assert job.returncode == 0, output
    assert {step: each[-1] for step, each in losses(run).items()} == pytest.approx(
        {step: each[-1] for step, each in undisturbed_run.items()}, rel=1e-5
    )
    logs = "".join(output) + "".join(path.read_text() for path in (run / "logs").glob("*.log"))
    assert f"{URL}/train-" in logs
    assert "does not answer" in logs
    assert "answers again after" in logs


@pytest.mark.parametrize("layout", ["layout.data=1", "layout.data=2"])
def test_run_saves_after_timeout_and_resumes(undisturbed_run, tmp_path, faults, layout):
    run, remote = train_command(URL, tmp_path, "data.timeout_seconds=3", layout)
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
        {step: each[-1] for step, each in undisturbed_run.items()}, rel=1e-5
    )
    assert [event["code"] for event in read_events(run) if event["kind"] == "exit"][-1] == 0


@pytest.mark.parametrize(
    "loader_options", [["data.workers=0"], ["data.workers=1"], ["data.workers=1", "layout.data=2"]]
)
def test_run_stopped_during_outage_saves_and_resumes(undisturbed_run, tmp_path, faults, loader_options):
    run, remote = train_command(URL, tmp_path, "data.timeout_seconds=1500", *loader_options)
    job = start(*remote)
    wait_for(lambda: last_step(run) >= 3, job)
    faults.inject("stall", match="GET|HEAD", times=1_000_000, seconds=3600.0)
    assert wait_until_stalled(run) < STEPS
    assert faults.injected
    job.send_signal(signal.SIGTERM)
    output = job.communicate(timeout=120)
    assert job.returncode == EXIT_CONTINUE, output
    step = last_step(run)
    assert 3 <= step < STEPS
    assert checkpoints(run) == [step]
    faults.faults.clear()
    done = finish(*remote)
    assert done.returncode == 0, done.stderr
    assert resumed_at(run) == [step]
    assert {step: each[-1] for step, each in losses(run).items()} == pytest.approx(
        {step: each[-1] for step, each in undisturbed_run.items()}, rel=1e-5
    )
