"""GPT's objective whose samples take their time: a test that has seen a run of few steps begin meets it under way."""

from __future__ import annotations

import time
from typing import Any

from megaptm.objectives.causal import CausalLM
from megaptm.objectives.objective import Sample

SECONDS = 0.05
"""For a sample; the CPU is free meanwhile."""


class PacedCausalLM(CausalLM):
    def make(self, *piece: Any) -> Sample:
        time.sleep(SECONDS)
        return super().make(*piece)


PACED = PacedCausalLM()
