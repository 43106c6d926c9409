"""What a restart needs to know of what MLflow already has: `run/track.json`."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from megaptm.errors import UserError
from megaptm.storage import parse_json, validated, write_whole

logger = logging.getLogger(__name__)

STATE = "track.json"
REMEDY = "remove it"


@dataclass(config=ConfigDict(extra="forbid"))
class State:
    """What a restart needs to know, `run/track.json`."""

    uri: str | None
    experiment: str
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tag by which the MLflow run is found again if we died between its creation and this file."""
    run_id: str | None = None
    experiment_id: str | None = None
    shipped: Annotated[int, Field(ge=0)] = 0
    """Bytes of the journal that MLflow has."""

    @classmethod
    def found(cls, run: Path) -> State | None:
        """What the last restart left, if there was one; a `UserError` where that is damaged."""
        path = run / STATE
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        return validated(cls, parse_json(content, path, remedy=REMEDY), path, remedy=REMEDY)

    @classmethod
    def read(cls, run: Path, *, uri: str | None, experiment: str) -> State:
        """The state left by the last restart; a fresh one when the address is another: it gets the whole journal."""
        try:
            state = cls.found(run)
        except UserError:
            logger.warning("%s is damaged; the run is reported to MLflow anew", run / STATE)
        else:
            if state is not None and (state.uri, state.experiment) == (uri, experiment):
                return state
        state = cls(uri=uri, experiment=experiment)
        state.write(run)
        return state

    def write(self, run: Path) -> None:
        write_whole(run / STATE, json.dumps(asdict(self), indent=1).encode())
