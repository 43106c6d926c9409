"""Table of a run's metrics, `metrics.csv`: a line per record, a column per metric."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from megaptm.storage import AtomicFile, refuse_link, safe_open
from megaptm.track.journal import UploadState

FILE = "metrics.csv"


class CsvFile:
    """Writer of the table of metrics. A new job writes the complete table again from the journal, so no line is
    repeated after a kill."""

    def __init__(self, run: Path, state: UploadState) -> None:
        self._path = run / FILE
        refuse_link(self._path)
        self._columns = ["step", "time"]
        self._rewrite([])
        state.uploaded_bytes = 0

    def send(self, records: Sequence[dict[str, Any]]) -> None:
        """Append the metrics of these records. A new metric becomes the last column; the complete file is then written
        again."""
        rows = [record for record in records if "step" in record]
        new = dict.fromkeys(key for row in rows for key in row if key not in self._columns)
        if new:
            with self._path.open(newline="", encoding="utf-8") as file:
                self._columns += new
                self._rewrite(csv.DictReader(file))
        with os.fdopen(safe_open(self._path, os.O_WRONLY | os.O_APPEND), "w", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerows(rows)

    def _rewrite(self, rows: Iterable[dict[str, Any]]) -> None:
        with AtomicFile(self._path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)

    def close(self) -> None: ...
