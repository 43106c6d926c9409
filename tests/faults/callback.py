"""Callback of a run under faults: it slows steps down, and corrupts numbers of rank 0 when the campaign requests it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import megaptm
from megaptm.parallel.engine import Engine

NOISE = 1e-3
"""Standard deviation of the noise that is added to a weight."""


class Faults(megaptm.Callback):
    """Paced steps: the processes of a tiny model would otherwise compute all the time, and write endless journals."""

    def __init__(self, seconds_per_step: float) -> None:
        self.seconds_per_step, self.last = seconds_per_step, 0.0

    def on_run_start(self, run: Any) -> None:
        forward_backward = Engine._forward_backward

        def corrupt(engine: Engine, *args: Any, step: int | None) -> Any:
            result = forward_backward(engine, *args, step=step)
            if step is not None and _take("gradient"):
                gradients = (getattr(part.parameter, "main_grad", None) for part in engine.optimizer.parts)
                next(gradient for gradient in gradients if gradient is not None).view(-1)[0] = torch.nan
            if kind := _take("weight"):
                weight = engine.optimizer.parts[0].replica.data
                if kind == "noise":
                    weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)), alpha=NOISE)
                else:
                    weight.view(-1)[0] = torch.nan
            return result

        Engine._forward_backward = corrupt  # type: ignore[method-assign]

    def on_step_end(self, run: Any, result: Any) -> None:
        time.sleep(max(0.0, self.last + self.seconds_per_step - time.monotonic()))
        self.last = time.monotonic()
        _take("clock", lambda difference: abs(time.time() - self.last - float(difference)) < 1)


def _take(name: str, is_due: Callable[[str], bool] = bool) -> str | None:
    """Return the content of an armed fault, which is then done; None if it is not armed or not due."""
    path = Path(os.environ["ARMED_FAULTS"], name)
    try:
        content = path.read_text()
        if is_due(content):
            path.rename(f"{path}.done")
            return content
    except FileNotFoundError:
        pass  # not armed, or taken by another rank
    return None
