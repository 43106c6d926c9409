"""Common start of every corpus build: output folder, progress display, workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from data_pipeline.corpus.output import CorpusOutput, open_output
from data_pipeline.corpus.work import JobRunner
from data_pipeline.corpus.workers import open_workers
from data_pipeline.progress import StageProgress
from megaptm.console import Console
from megaptm.errors import UserError, quote_value


class CorpusBuild:
    """Corpus build in progress."""

    def __init__(self, output: CorpusOutput, stages: StageProgress, opened: ExitStack) -> None:
        self.output, self.stages, self._opened = output, stages, opened

    def start_workers(self, count: int | None, input_bytes: int) -> JobRunner:
        """Start workers for an input of `input_bytes`; they stop with the build (`corpus.workers.open_workers`)."""
        with self.stages.stage("start workers"):
            workers = self._opened.enter_context(open_workers(count, input_bytes, self.output.scratch))
        return JobRunner(self.output.scratch, workers, self.stages)


@contextmanager
def open_build(
    out: str | Path, *, overwrite: bool, scratch: str | None, console: Console | None
) -> Iterator[CorpusBuild]:
    """Open a corpus build with its output at `out` (`corpus.output.open_output`)."""
    try:
        str(out).encode()
    except UnicodeEncodeError:  # the report contains the name
        raise UserError(
            f"out ({quote_value(str(out), max_length=300)}) is not valid UTF-8: choose another name."
        ) from None
    with (
        open_output(str(out), overwrite=overwrite, scratch=scratch, console=console) as output,
        StageProgress(console) as stages,
        ExitStack() as opened,
    ):
        yield CorpusBuild(output, stages, opened)
