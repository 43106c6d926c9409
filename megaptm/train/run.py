"""Assembly of training in one process of a run, in the order in which things are opened."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from megaptm.config import Config, load, resolve
from megaptm.config.objective_fit import sequence_lengths
from megaptm.config.schedule import config_warnings
from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, UserError, storage_errors_as_user_errors
from megaptm.plan.kernels import attention_kernels
from megaptm.processes import end_with_parent
from megaptm.report.terminal import STARTED_BY, TimedLog, describe_resume, describe_start, device_title, next_commands
from megaptm.resilience.events import Events, ExitEvent, StopSignalEvent
from megaptm.resilience.heartbeat import VARIABLE, Heartbeat
from megaptm.resilience.lock import RunLock
from megaptm.resilience.signals import StopError, StopRequest
from megaptm.resilience.watchdog import collective_timeout_minutes
from megaptm.run.folder import CONFIG, refuse_other_config
from megaptm.run.rank import RankEnvironment, check_processes, worker_environment
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
    config = load(run / CONFIG)
    rank_env = rank_env or worker_environment()
    if rank_env is None:
        raise UserError("RANK and WORLD_SIZE are not set: start a run with `megaptm train`, torchrun or srun.")
    check_processes(rank_env, config.layout)
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
    from megaptm import cpu_tuning
    from megaptm.parallel.custom_patterns import refuse_other_patterns
    from megaptm.parallel.deterministic import use_deterministic_kernels
    from megaptm.parallel.groups import device, join, leave
    from megaptm.run.corpora import RunCorpora
    from megaptm.train.checkpointer import Checkpointer
    from megaptm.train.device_use import peak_flops
    from megaptm.train.divided_checks import divide_checks
    from megaptm.train.engines import build_engine, build_source
    from megaptm.train.loop import Training, train
    from megaptm.train.metrics import SecondsSpent, StepReport
    from megaptm.train.peer_watch import watch_each_other
    from megaptm.train.profiler import StepProfiler

    spec = resolve(config)
    events = Events(run, fence=lock.require_held) if lock else None
    if config.train.deterministic:
        use_deterministic_kernels()
    minutes = collective_timeout_minutes(config.train.hang_seconds)
    log(f"joining {rank_env.world} process{'es' if rank_env.world > 1 else ''}")
    join(
        rank=rank_env.rank,
        world=rank_env.world,
        local_rank=rank_env.local_rank,
        timeout_minutes=minutes,
        listener=rank_env.listener,
    )
    if not isinstance(spec, ModelSpec) or (device().type == "cpu" and config.train.compile is not True):
        # CPUs train word vectors; compiled code checks shapes of results that the tuning leaves out.
        cpu_tuning.install()
    if VARIABLE not in os.environ:
        watch_each_other(heartbeat, run, config, rank_env)
    log("opening the corpora")
    with stop.interrupt_waits():
        corpora = RunCorpora(config, divide_checks(run, rank_env))
    log(f"building the model ({device_title()})")
    for attention, choice in attention_kernels(config, device().type):
        log(f"{attention}: {choice.kernel}, {choice.why}")
    engine = build_engine(config, spec, corpora, rank_env, timeout_minutes=minutes, log=log)
    if isinstance(spec, ModelSpec):
        batch = config.batch_spec
        refuse_other_patterns(spec, sequence_lengths(batch, spec.family))
    with stop.interrupt_waits():
        source = build_source(config, engine, corpora)
    checkpointer = Checkpointer(
        run, config, engine, spec, source, rank_env, lock=lock, events=events, callbacks=callbacks
    )
    counts_pairs = config.built_objective.unit == "pairs"
    log(f"looking for a checkpoint{', then counting the word pairs of the corpus' if counts_pairs else ''}")
    with stop.interrupt_waits(), heartbeat.during("loading"):
        start = checkpointer.restore()
    heartbeat.set_step(start)
    log(
        describe_resume(start, checkpointer.layout_before, config)
        if start
        else describe_start(config, imported=checkpointer.has_restored)
    )
    report: StepReport | None = None
    if events:
        source.tokenizer.save(run / "tokenizer")
        fence = lock.require_held if lock else lambda: None
        report = StepReport(
            run, config, spec, source.train, events, start=start, fence=fence, peak_flops=peak_flops(config)
        )
        callbacks.report = report
    callbacks.run_start(start, checkpointer.callback_state)
    training = Training(
        config=config,
        objective=config.built_objective,
        engine=engine,
        microbatches=source.steps(start),
        held_out=source.held_out,
        checkpointer=checkpointer,
        stop=stop,
        seconds=report.seconds if report else SecondsSpent(),
        callbacks=callbacks,
        heartbeat=heartbeat,
        profiler=StepProfiler(run, config.train.profile, rank=rank_env.rank),
    )
    code = EXIT_FAILURE
    try:
        with storage_errors_as_user_errors(run):
            code = train(training, start=start)
    except UserError as error:
        code = error.exit_code
        raise
    finally:
        heartbeat.enter("ending")
        source.close()
        # If another job took over the run, only that job reports its end.
        if report and events and lock and lock.is_held():
            if stop.name:
                events.write(StopSignalEvent(signal=stop.name))
            callbacks.stop(code)
            report.close(STATUS.get(code, "FAILED"))
            spent = {name: round(value, 3) for name, value in asdict(training.seconds).items()}
            events.write(ExitEvent(code=code, **spent))
    leave()
    if report and code in (0, EXIT_CONTINUE):
        command = shlex.split(os.environ.get(STARTED_BY, "train"))
        lines = next_commands(config, source.tokenizer, done=code == 0, start=command)
        print("\n".join(["next:", *(f"  {line}" for line in lines)]), flush=True)
    return code
