"""Assembly of training in one process of a run, in the order in which things are opened."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from megaptm.config import Config, load_config, resolve_spec
from megaptm.config.schedule import config_warnings
from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, UserError, printable, storage_errors_as_user_errors
from megaptm.processes import end_with_parent
from megaptm.report.terminal import STARTED_BY, TimedLog, next_commands
from megaptm.resilience.events import Events, ExitEvent, StopSignalEvent
from megaptm.resilience.heartbeat import VARIABLE, Heartbeat
from megaptm.resilience.lock import RunLock
from megaptm.resilience.signals import StopError, StopRequest
from megaptm.resilience.watchdog import collective_timeout_minutes
from megaptm.run.folder import CONFIG, refuse_other_config
from megaptm.run.rank import RankEnvironment, check_world_size, worker_environment
from megaptm.spec import ModelSpec
from megaptm.train.callbacks import Callbacks, load_callbacks

# MLflow's status by exit code; any other code is a failure.
STATUS = {0: "FINISHED", 75: "SCHEDULED"}


def run_worker(folder: str, rank_env: RankEnvironment | None = None) -> int:
    """Run one process of the run in `folder` to its end and return the exit code. `rank_env`: rank of this process;
    None reads it from the environment."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # megaptm's launcher does this itself, and Slurm kills its processes
        end_with_parent(os.getppid())()
    run = Path(folder)
    refuse_other_config(run)
    config = load_config(run / CONFIG)
    rank_env = rank_env or worker_environment()
    if rank_env is None:
        raise UserError("RANK and WORLD_SIZE are not set: start a run with `megaptm train`, torchrun or srun.")
    check_world_size(rank_env, config.layout)
    with ExitStack() as stack:
        heartbeat = stack.enter_context(Heartbeat(rank_env.rank, hang_seconds=config.train.hang_seconds))
        if VARIABLE in os.environ:
            heartbeat.open(Path(os.environ[VARIABLE]))
        stop = stack.enter_context(StopRequest())
        # Before joining the world, so that a second job on the same folder fails alone and at once.
        lock = stack.enter_context(RunLock(run)) if rank_env.rank == 0 else None
        if lock:
            refuse_other_config(run)
            heartbeat.remove_earlier()
        try:
            code = _run_rank(run, config, rank_env, lock, stop, heartbeat)
        except StopError:  # before the first step; earlier checkpoints are unchanged
            code = EXIT_CONTINUE
        stop.ignore_signals()
        return code


def _run_rank(
    run: Path, config: Config, rank_env: RankEnvironment, lock: RunLock | None, stop: StopRequest, heartbeat: Heartbeat
) -> int:
    log = TimedLog(enabled=rank_env.rank == 0)
    for warning in config_warnings(config):
        log(f"warning: {warning}")
    callbacks = Callbacks(run, config, load_callbacks(config.callbacks) if lock else {})
    log("loading PyTorch and megatron-core")
    # Imported late: torch and megatron-core take seconds, and errors above should not wait for them.
    from megaptm.parallel.deterministic import use_deterministic_kernels
    from megaptm.parallel.groups import join_process_group, leave_process_group, rank_device
    from megaptm.train import cpu_tuning
    from megaptm.train.gpu_watch import watch_gpu
    from megaptm.train.loop import run_training_loop
    from megaptm.train.peer_watch import watch_each_other
    from megaptm.train.phase import TrainingJob

    spec = resolve_spec(config)
    events = Events(run, fence=lock.require_held) if lock else None
    if config.train.deterministic:
        use_deterministic_kernels()
    minutes = collective_timeout_minutes(config.train.hang_seconds)
    log(f"joining {rank_env.world} process{'es' if rank_env.world > 1 else ''}")
    join_process_group(
        rank=rank_env.rank,
        world=rank_env.world,
        local_rank=rank_env.local_rank,
        timeout_minutes=minutes,
        listener=rank_env.listener,
    )
    if not isinstance(spec, ModelSpec) or (rank_device().type == "cpu" and config.train.compile is not True):
        # CPUs train word vectors; compiled code checks shapes of results that the tuning leaves out.
        cpu_tuning.tune_for_cpu()
    if VARIABLE not in os.environ:
        watch_each_other(heartbeat, run, config, rank_env)
    watch_gpu(run, rank_env.rank)
    job = TrainingJob(run, config, rank_env, lock, events, stop, heartbeat, callbacks, log, timeout_minutes=minutes)
    job.start_copies()
    job.enter_due_phases()
    training, start = job.open_phase(starts_job=True)
    code = EXIT_FAILURE
    loop_end: float | None = None
    try:
        with storage_errors_as_user_errors(run):
            while (ended_with := run_training_loop(training, start=start)) is None:
                del training
                training, start = job.open_next_phase()
            loop_end = time.monotonic()
            callbacks.report_checkpoints()
            if job.report and ended_with == 0:
                job.report.complete(callbacks.state)
            job.finish_copies(ended_with)
            code = ended_with
            if code == EXIT_CONTINUE:
                job.enter_due_phases()
    except UserError as error:
        code = error.exit_code
        raise
    except StopError:  # while a phase was opened
        code = EXIT_CONTINUE
        raise
    finally:
        loop_end = time.monotonic() if loop_end is None else loop_end
        heartbeat.enter("ending")
        if job.source is not None:
            job.source.close()
        # If another job took over the run, only that job reports its end.
        if job.report and events and lock and lock.is_held():
            if stop.name:
                events.write(StopSignalEvent(signal=stop.name))
            callbacks.stop(code)
            job.report.close(STATUS.get(code, "FAILED"))
            spent = {**asdict(job.seconds), "shutdown": time.monotonic() - loop_end}
            events.write(ExitEvent(code=code, **{name: round(seconds, 3) for name, seconds in spent.items()}))
    leave_process_group()
    command = shlex.split(os.environ.get(STARTED_BY, "train"))
    if job.report and job.source and command and code in (0, EXIT_CONTINUE):
        lines = next_commands(job.config, job.source.tokenizer, done=code == 0, start=command)
        print("\n".join(["next:", *(f"  {printable(line)}" for line in lines)]), flush=True)
    return code
