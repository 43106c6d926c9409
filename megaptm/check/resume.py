"""Check of an existing run: whether this config may continue it, and whether its newest checkpoint is undamaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from megaptm.check.data import with_temporary_cache
from megaptm.check.finding import CheckInput, Finding
from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.committed import FOLDER, newest_step
from megaptm.checkpoint.files import DamagedError
from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import Config, load_run_config, resolve_spec
from megaptm.data import Corpus
from megaptm.errors import UserError
from megaptm.run.changes import compare_configs
from megaptm.run.compatibility import (
    compatibility_record,
    continues_with_other_data,
    find_abandoned,
    refuse_other_model,
    refuse_other_text,
)
from megaptm.run.continuation import with_due_phases
from megaptm.run.corpora import corpus_cache
from megaptm.run.folder import CONFIG, check_run_start, has_checkpoint
from megaptm.run.submission import SCRIPT, refuse_queued_run

SAMPLE_BYTES = 1 << 30
"""Bytes of a checkpoint that are checked without --full."""
TOPIC = "run"


def check_resume(case: CheckInput) -> Iterator[Finding]:
    """Check whether a run can be resumed; no findings if it does not exist yet."""
    run = Path(case.config.run)
    check_run_start(case.config)
    if (run / SCRIPT).exists():
        refuse_queued_run(run)
    if not (run / FOLDER).is_dir():
        return
    if (run / CONFIG).exists() and has_checkpoint(run):
        saved = with_due_phases(load_run_config(run / CONFIG), newest_step(run) or 0)
        with with_temporary_cache(case.config) as config:
            faults = compare_configs(saved, config, change=case.change).faults
        yield from (Finding(TOPIC, "fault", fault) for fault in faults)
        if faults:
            return
    newest, problems = _newest_checkpoint(case, run)
    if newest is None:
        if problems:
            raise UserError(
                f"all checkpoints in {run / 'checkpoints'} are damaged ({problems[0]}): put an undamaged copy there, "
                "or choose another run=FOLDER."
            )
        return
    yield from (
        Finding(TOPIC, "warning", f"{problem}: the run continues from the checkpoint of step {newest.step:,} instead.")
        for problem in problems
    )
    _require_compatible(case, newest)
    yield _progress_finding(case.config, newest)


def _newest_checkpoint(case: CheckInput, run: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest undamaged checkpoint of a run, and the problems of later ones."""
    store = CheckpointStore(run)
    problems: list[str] = []
    abandoned = find_abandoned(store, case.config.train.skip_batches)
    for step in store.steps():
        if step in abandoned:
            problems.append(
                f"the checkpoint of step {step:,} was trained on steps that train.skip_batches.{abandoned[step]} skips"
            )
            continue
        try:
            checkpoint = store.load(step)
            _verify_checkpoint(case, checkpoint)
            return checkpoint, problems
        except DamagedError as error:
            problems.append(str(error))
    # Checkpoints that a job set aside. Starting again at step 0 would look like success, so the next job refuses too.
    return None, problems + [f"{folder} was set aside" for folder in store.folder.glob("step-*.damaged*")]


def _verify_checkpoint(case: CheckInput, checkpoint: Checkpoint) -> None:
    bytes_left = {"none": 0.0, "some": float(SAMPLE_BYTES), "all": float("inf")}[case.hashing]
    for number, file in enumerate(checkpoint.files):
        case.tell(f"{checkpoint.folder.name}: {number} of {len(checkpoint.files)} files read")
        checkpoint.verify_file(file, hashed=bytes_left > 0)
        bytes_left -= file.size


def _require_compatible(case: CheckInput, checkpoint: Checkpoint) -> None:
    """Check that the checkpoint has the config's model, tokenizer and text. The topic `data` reports problems of the
    corpora themselves."""
    if case.config_errors:
        return
    with with_temporary_cache(case.config) as config:
        try:
            manifests = {location: Corpus.open(location, corpus_cache(config)).manifest for location in config.data.mix}
        except UserError:
            return
    tokenizer = next(iter(manifests.values())).tokenizer["fingerprint"]
    refuse_other_model(checkpoint, compatibility_record(resolve_spec(case.config), tokenizer))
    ids = {location: manifest.id for location, manifest in manifests.items()}
    refuse_other_text(checkpoint, ids, may_change=continues_with_other_data(case.config, checkpoint))


def _progress_finding(config: Config, newest: Checkpoint) -> Finding:
    details = {"step": newest.step, "steps": config.train.steps}
    if newest.step >= config.train.steps:
        message = f"the run is complete: all {config.train.steps:,} steps are done; raise train.steps to continue."
        return Finding(TOPIC, "warning", message, details)
    message = (
        f"the run continues from the checkpoint of step {newest.step:,} of {config.train.steps:,}, which is undamaged."
    )
    return Finding(TOPIC, "ok", message, details)
