"""Work that is done once: each finished job leaves its result behind, and a build that begins again finds it there."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from data_pipeline.corpus.workers import Workers
from data_pipeline.progress import Stages
from megaptm import __version__
from megaptm.storage import write_whole

Job = TypeVar("Job")
Result = TypeVar("Result")

VERSION = f"{__version__} 1"
"""Results of another version are not taken. The second number rises when a job's meaning changes."""


class Work:
    """Runs the jobs of a build on a crew of workers, and keeps each result in a file named by the job's content.

    So a job must say everything that its result depends on, and a file it writes must be complete when it appears.
    """

    def __init__(self, folder: Path, crew: Workers, stages: Stages):
        self.folder = folder
        self.crew = crew
        self.stages = stages
        self.found = 0
        """Jobs that an earlier build had finished."""

    def run(
        self,
        name: str,
        function: Callable[[Job], Result],
        jobs: Iterable[Job],
        *,
        total: int | None = None,
        keep: bool = True,
    ) -> list[Result]:
        """The results of all jobs, in their order. `total` is their number, where `jobs` has no length.

        Without `keep` every job is done again: for what is done elsewhere, where someone else may undo it.
        """
        results: dict[int, Result] = {}
        numbers: list[int] = []
        kept = self.folder / "finished" / name.replace(" ", "-")
        kept.mkdir(parents=True, exist_ok=True)
        count = total if total is not None else len(jobs)  # type: ignore[arg-type]

        with self.stages.stage(name, count) as advance:

            def unfinished() -> Iterator[_Call]:
                for number, job in enumerate(jobs):
                    call = _Call(function, job, str(kept / f"{key_of(function, job)}.pickle") if keep else None)
                    try:
                        results[number] = call.remembered()
                    except (OSError, EOFError, pickle.UnpicklingError):
                        numbers.append(number)
                        yield call
                    else:
                        self.found += 1
                        advance()

            for done, result in self.crew.run(_do, unfinished()):
                results[numbers[done]] = result
                advance()
        return [results[number] for number in range(len(results))]


@dataclass(frozen=True)
class _Call:
    function: Callable[[Any], Any]
    job: Any
    kept: str | None

    def remembered(self) -> Any:
        if self.kept is None:
            raise FileNotFoundError
        with open(self.kept, "rb") as file:
            return pickle.load(file)


def _do(call: _Call) -> Any:
    """Runs on a worker, which keeps the result itself: the driver may be gone when it is there."""
    result = call.function(call.job)
    if call.kept is not None:
        write_whole(call.kept, pickle.dumps(result))
    return result


def key_of(function: Callable, job: Any) -> str:
    """Equal for equal jobs, in every process and on every machine."""
    digest = hashlib.blake2b(digest_size=16)
    for token in _tokens((VERSION, function.__module__, function.__qualname__, job)):
        digest.update(len(token).to_bytes(8, "little"))
        digest.update(token)
    return digest.hexdigest()


def _tokens(value: Any) -> Iterator[bytes]:
    if is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        for field in fields(value):
            yield field.name.encode()
            yield from _tokens(getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key in sorted(value):
            yield from _tokens((key, value[key]))
    elif isinstance(value, tuple | list):
        yield f"sequence {len(value)}".encode()
        for entry in value:
            yield from _tokens(entry)
    else:
        assert value is None or isinstance(value, str | bytes | int | float | Path), f"a job holds {value!r}"
        yield repr(value).encode()
