"""Comparison of a run after faults with one that was never disturbed and skips the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from megaptm.checkpoint.committed import find_committed
from megaptm.checkpoint.store import CheckpointStore
from megaptm.errors import EXIT_CONTINUE
from megaptm.track import upload_metrics
from tests.drills.program import finish, losses
from tests.faults.job import Job
from tests.faults.outcomes import FaultError, Outcome


def compare(job: Job, outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """Return a summary, and whether the run equals the undisturbed one. Outcomes of faults after which a loss differs
    get a problem."""
    last = max(find_committed(job.run), default=0)
    if not last:
        raise FaultError("the run has no checkpoint: its losses cannot be compared")
    recorded = {step: values for step, values in job.history.losses.items() if step <= last}
    config = yaml.safe_load((job.run / "config.yaml").read_text(encoding="utf-8"))
    skips = {int(step): batches for step, batches in (config["train"].get("skip_batches") or {}).items()}
    reference = job.folder / "undisturbed"
    options = (f"train.stop_at={last}", "checkpoint.every=1000000", f"train.skip_batches={skips}")
    done = finish(*job.arguments(reference, str(job.services.folder), *options), seconds=3600)
    if done.returncode != EXIT_CONTINUE:
        raise FaultError(f"the undisturbed run failed:\n{done.stderr}")
    expected = {step: values[-1] for step, values in losses(reference).items()}
    differing = [
        (step, outcome, loss)
        for step, values in recorded.items()
        for number, (outcome, loss) in enumerate(values, 1)
        if loss != expected.get(step)
        # Steps until a wrong replica is found have wrong losses, and are repeated.
        and not (number < len(values) and outcome is not None and "one replica" in outcome.kind)
    ]
    for step, outcome, loss in differing:
        if outcome is not None and not outcome.problem:
            outcome.problem = f"loss of step {step:,} differs: {loss}"
    for outcome in outcomes:
        outcome.is_compared = True
    steps = {*range(1, last + 1)}
    checkpoints = [[file.sha256 for file in CheckpointStore(run).load(last).files] for run in (job.run, reference)]
    are_equal = {
        "losses": not differing,
        "last checkpoint": checkpoints[0] == checkpoints[1],
        "steps in the journal": steps == {*recorded},
        "steps in the tracker": not job.tracker or steps <= _tracked_steps(job.run, job.tracker.uri),
        "skipped batches in the events": skips == job.history.skips,
    }
    repeated = sum(map(len, recorded.values())) - last
    names = ", ".join(name for name, is_equal in are_equal.items() if not is_equal)
    return f"{last:,} steps, {repeated:,} repeated; {names or 'nothing'} differs from the undisturbed run", not names


def _tracked_steps(run: Path, uri: str) -> set[int]:
    """Return the steps whose losses are in the tracker, after sending those that the job could not send."""
    from mlflow import MlflowClient

    upload_metrics(run, uri=uri, experiment="megaptm")
    client = MlflowClient(tracking_uri=uri)
    [tracked] = client.search_runs([client.get_experiment_by_name("megaptm").experiment_id])
    return {point.step for point in client.get_metric_history(tracked.info.run_id, "loss")}
