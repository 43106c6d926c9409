"""The steps under the name they had while they were four."""

from data_pipeline.clean import CLEAN, STEPS
from data_pipeline.clean.basic import CutLong, DropEmpty, DropShort, Normalize
from data_pipeline.clean.step import Step, run_steps

__all__ = ["CLEAN", "STEPS", "CutLong", "DropEmpty", "DropShort", "Normalize", "Step", "run_steps"]
