"""Sections `checkpoint` and `hub`: when checkpoints are saved, which ones are kept, and where copies go."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from megaptm.section import Count, Section

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
"""Seconds of the units of a time."""
DURATION = re.compile(r"[1-9][0-9]{0,5}[smh]")
"""Pattern of a time in a config: `30m`."""


class BestConfig(Section):
    """Checkpoints with the lowest values of a validation metric. A number in place of the section is `count`."""

    count: Annotated[int, Field(ge=0)] = 0
    """Number of checkpoints to keep, of each phase with data or an objective of its own: losses of different ones are
    not compared."""
    metric: str = "validation/loss"
    """Metric to compare: validation/loss, validation/NAME for one of several losses, or validation/SET/loss for a
    validation set."""


class KeepConfig(Section):
    """Checkpoints that are not removed when newer ones are saved. A number in place of the section is `last`. Tagged
    checkpoints are always kept (`megaptm checkpoint tag`)."""

    last: Count = 2
    """Number of newest checkpoints to keep; on a full disk the oldest is removed before the next is written, but never
    the last one."""
    every: Count | None = None
    """Keep the checkpoints of steps that are multiples of this, for branches and returns. Default: none."""
    best: BestConfig = BestConfig()

    @field_validator("best", mode="before")
    @classmethod
    def _is_number_or_section(cls, value: Any) -> Any:
        return {"count": value} if isinstance(value, int) else value


class CheckpointConfig(Section):
    """Checkpoints of a run. A checkpoint is always saved after the last step, and when a signal stops the run."""

    every: Count | Literal["auto"] | Annotated[str, Field(pattern=DURATION.pattern)] = 1000
    """Steps between two checkpoints, or a time, as in 30m or 2h. auto: the time that costs least, from the measured
    cost of a checkpoint and failures_per_node_day (docs/configs.md)."""
    failures_per_node_day: Annotated[float, Field(gt=0.0)] = 0.004
    """Failures of a node per day that end the job, for `every: auto`. The default is that of Llama 3, which had 419 in
    54 days on 2,048 nodes (arXiv:2407.21783)."""
    keep: KeepConfig = KeepConfig()
    upload_to: str | None = None
    """URL or folder, as in s3://bucket/runs. Each committed checkpoint is copied to the folder there with the name of
    the run, in the background. `megaptm checkpoint copy` brings them back. Default: no copies."""
    asynchronous: bool = True
    """Continue training while a checkpoint is written, from a copy of weights and moments in host memory; the last step
    and a signal wait for it."""

    @property
    def seconds(self) -> float | None:
        """Return the configured seconds between two checkpoints; None for steps, and for auto."""
        if isinstance(self.every, int) or self.every == "auto":
            return None
        return float(self.every[:-1]) * UNITS[self.every[-1]]

    def is_step(self, step: int) -> bool:
        """Whether the steps of the config alone require a checkpoint after a step."""
        every = self.every if isinstance(self.every, int) else self.keep.every
        return every is not None and step % every == 0

    @field_validator("every", mode="before")
    @classmethod
    def _is_steps_minutes_or_auto(cls, value: Any) -> Any:
        """Raise one error for an invalid value, instead of one per type of the field."""
        is_text = isinstance(value, str) and (value == "auto" or DURATION.fullmatch(value))
        if not is_text and not (type(value) is int and value > 0):
            raise PydanticCustomError("every", "must be a number of steps, a time as in 30m or 2h, or auto")
        return value

    @field_validator("keep", mode="before")
    @classmethod
    def _is_number_or_section(cls, value: Any) -> Any:
        return {"last": value} if isinstance(value, int) else value


class HubConfig(Section):
    """Hugging Face copies of checkpoints. A process without GPU on the first node writes them in the background. If a
    copy fails, a warning is logged and training continues."""

    export_every: Count | None = None
    """Export the last checkpoint, and the first in each period of this many steps, to the folder `hf` of the
    checkpoint. It is removed together with the checkpoint (checkpoint.keep). Default: none."""
    export_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the exported weights."""
    push_to: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")] | None = None
    """Model on the Hugging Face hub, as in name/model, to which each copy is pushed. It is created as private. Log in
    with `hf auth login`. Default: none."""
