"""Time that metrics cost rank 0 in each step: journal, each logger, and callbacks.

    python benchmarks/loggers.py [--steps 400]

The step is a pause of `--milliseconds`, in which loggers send what was recorded. Rows count the wall time until the
record is written, which a step waits for, and the CPU time of the threads and processes that send it. Loggers whose
package is missing are skipped.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from common.options import Options

from megaptm import Callback
from megaptm.config import load_config
from megaptm.track import Tracker
from megaptm.track.loggers import LOGGERS
from megaptm.train.callbacks import Callbacks

METRICS = {f"metric/{number}": 1.0 / number for number in range(1, 16)}
"""Metrics of a step, about as many as a run records."""
TINY = Path(__file__).parent.parent / "configs/gpt2/tiny.yaml"


class Counting(Callback):
    """Callback that records a metric in every step."""

    def on_step_end(self, run, result):  # type: ignore[no-untyped-def]
        run.log_metrics({"my/metric": 1.0})


def measure(record: Callable[[int], object], *, steps: int, pause: float) -> tuple[float, float]:
    """Return the wall time of recording a step and the CPU time of the threads that send it, seconds per step."""
    cpu, own_cpu, waited = time.process_time(), time.thread_time(), 0.0
    for step in range(1, steps + 1):
        started = time.perf_counter()
        record(step)
        waited += time.perf_counter() - started
        time.sleep(pause)
    sending = (time.process_time() - cpu) - (time.thread_time() - own_cpu)
    return waited / steps, sending / steps


def measure_loggers(folder: Path, loggers: tuple[str, ...], *, steps: int, pause: float) -> tuple[float, float]:
    tracker = Tracker(folder / "-".join(("run", *loggers)), loggers=loggers)
    tracker.log_metrics(0, METRICS)
    time.sleep(0 if not loggers else 20 * pause + 5.0)  # imports, and the start of the logger's run
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = measure(lambda step: tracker.log_metrics(step, METRICS), steps=steps, pause=pause)
    tracker.close(seconds=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result[0], result[1] + (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / steps


def measure_callbacks(folder: Path, *, steps: int, pause: float) -> tuple[float, float]:
    config = load_config(TINY, ["model.vocabulary=512", f"run={folder}"])
    callbacks = Callbacks(folder, config, {name: Counting() for name in ("first", "second")})
    return measure(lambda step: callbacks.step_end(step, 0.1, None), steps=steps, pause=pause)  # type: ignore[arg-type]


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--steps", default=400, short=5)
    arguments.add("--milliseconds", default=20.0, short=1.0)
    options = arguments.read()
    os.environ.setdefault("WANDB_MODE", "offline")
    sizes = {"steps": options.steps, "pause": options.milliseconds / 1000}
    installed = [name for name, logger in LOGGERS.items() if logger.package is None or find_spec(logger.package)]
    print(f"{'':<32}{'a step waits':>14}{'other CPU':>14}")
    with tempfile.TemporaryDirectory() as name:
        rows = {"two callbacks": measure_callbacks(Path(name), **sizes)}
        for loggers in ((), *((logger,) for logger in installed), tuple(installed)):
            rows[", ".join(loggers) or "journal"] = measure_loggers(Path(name), loggers, **sizes)
    for title, (waited, sending) in rows.items():
        print(f"{title[:31]:<32}{1e6 * waited:>11,.0f} us{1e6 * sending:>11,.0f} us")
    all_waited = rows["two callbacks"][0] + rows[", ".join(installed)][0]
    print(f"METRIC logging_step_us {1e6 * all_waited:.0f} us goal <=1000")


if __name__ == "__main__":
    main()
