"""TensorBoard event files of a run, in the folder `tensorboard` of the run. Only the upload thread imports this
module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from megaptm.storage import refuse_link
from megaptm.track.journal import UploadState

FOLDER = "tensorboard"
SUFFIX = ".megaptm"
"""End of the names of our files, beside which the user may write others."""
TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class TensorBoardFiles:
    """Writer of event files; each job writes a file of its own."""

    def __init__(self, run: Path, state: UploadState) -> None:
        folder = run / FOLDER
        refuse_link(folder)
        if not state.uploaded_bytes:  # the files of another run, if this one is a copy
            for file in folder.glob(f"*{SUFFIX}"):
                file.unlink()
        elif not any(folder.glob(f"*{SUFFIX}")):  # removed by the user
            state.uploaded_bytes = 0
        self._writer = EventFileWriter(str(folder), filename_suffix=SUFFIX)
        self._starts = False

    def send(self, records: Sequence[dict[str, Any]]) -> None:
        """Write metrics to TensorBoard as scalars, and parameters as a text."""
        for record in records:
            if "params" in record:
                self._add(record, 0, [_text_table("config", record["params"])])
            # The first step of a job, from which TensorBoard discards the steps of earlier jobs.
            self._starts = self._starts or record.get("status") == "RUNNING"
            if "step" not in record:
                continue
            if self._starts and record["step"]:
                start = SessionLog(status=SessionLog.START)
                self._writer.add_event(Event(wall_time=record["time"], step=record["step"], session_log=start))
                self._starts = False
            scalars = {key: value for key, value in record.items() if key not in ("time", "step")}
            values = [Summary.Value(tag=key, simple_value=value) for key, value in scalars.items()]
            self._add(record, record["step"], values)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, record: Mapping[str, Any], step: int, values: Sequence[Summary.Value]) -> None:
        self._writer.add_event(Event(wall_time=record["time"], step=step, summary=Summary(value=values)))


def _text_table(tag: str, values: Mapping[str, Any]) -> Summary.Value:
    """Return parameters as a table in Markdown."""
    rows = [f"| {key} | {str(value).replace('|', chr(92) + '|')} |" for key, value in values.items()]
    text = "\n".join(["| key | value |", "|---|---|", *rows])
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    return Summary.Value(
        tag=f"{tag}/text_summary",
        metadata=TEXT,
        tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape),
    )
