"""GPT's objective with slow samples, so that a test finds a short run still running."""

from __future__ import annotations

import time
from typing import Any

from megaptm.objectives.causal import CausalLM
from megaptm.objectives.objective import Sample

SECONDS = 0.05
"""Seconds per sample, without using the CPU."""


class SlowCausalLM(CausalLM):
    def make_sample(self, *piece: Any) -> Sample:
        time.sleep(SECONDS)
        return super().make_sample(*piece)


SLOW_OBJECTIVE = SlowCausalLM()
