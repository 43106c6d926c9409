"""Jobs that run once: the result of a finished job is stored, and a restarted build reads it.

A result is stored as JSON with the hashes of all files that the job wrote. It is reused only if every byte of these
files is unchanged; otherwise the job runs again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from data_pipeline.corpus.workers import Workers
from data_pipeline.document import memory_error
from data_pipeline.folders import FINISHED
from data_pipeline.progress import StageProgress
from megaptm import __version__
from megaptm.errors import UserError
from megaptm.storage import created_paths, file_sha256, write_atomically

Job = TypeVar("Job")
Result = TypeVar("Result")

VERSION = f"{__version__} 8"
"""Version of stored results of jobs; results of another version are ignored. Increment the second number when the
meaning of a job changes."""


class JobRunner:
    """Runs jobs on workers and stores each result in a file named by a hash of the job.

    Requirements: a job contains everything that its result depends on; files are written atomically
    (`megaptm.storage.AtomicFile`); the function has a return annotation of numbers, strings, and dataclasses of these.
    """

    def __init__(self, folder: Path, workers: Workers, stages: StageProgress):
        self.folder = folder
        self.workers = workers
        self.stages = stages
        self.reused_jobs = 0
        """Number of jobs whose result was stored by an earlier build."""
        self.damaged: list[str] = []
        """Files below `folder` that changed after an earlier build had written them. Their jobs ran again."""

    def run(
        self,
        name: str,
        function: Callable[[Job], Result],
        jobs: Iterable[Job],
        *,
        total: int | None = None,
        keep: bool = True,
    ) -> list[Result]:
        """Run jobs of a corpus build and return their results in order. `total` is their number if `jobs` has no
        length.

        Without `keep`, results are not reused. Use this for effects outside of `folder`, which may be undone by others.
        """
        results: dict[int, Result] = {}
        results_folder = Path(FINISHED, name.replace(" ", "-"))
        (self.folder / results_folder).mkdir(parents=True, exist_ok=True)
        count = total if total is not None else len(jobs)  # type: ignore[arg-type]
        calls = (
            _Call(
                function,
                job,
                str(self.folder),
                str(results_folder / f"{job_key(function, job)}.json") if keep else None,
            )
            for job in jobs
        )
        with self.stages.stage(name, count) as advance:
            # Workers look up stored results themselves, which distributes the hashing of files.
            for number, done in self.workers.run(_run_job, calls):
                results[number] = done.result
                self.reused_jobs += done.was_stored
                self.damaged += done.damaged
                advance()
        return [results[number] for number in range(len(results))]


@dataclass(frozen=True)
class _Call:
    function: Callable[[Any], Any]
    job: Any
    folder: str
    result_path: str | None
    """Path of a job's stored result below the folder, or None."""


@dataclass(frozen=True)
class _JobOutcome:
    result: Any
    was_stored: bool = False
    damaged: tuple[str, ...] = ()


class _DamagedFilesError(Exception):  # no end, only more work
    """Raised for files that changed after a job had written them; they are the arguments of the exception."""


def _run_job(call: _Call) -> _JobOutcome:
    """Run a job on a worker. The worker stores the result itself, because the driver may be gone by then."""
    if call.result_path is None:
        return _JobOutcome(call.function(call.job))
    try:
        return _JobOutcome(_load_result(call.function, Path(call.folder), call.result_path), was_stored=True)
    except FileNotFoundError:
        damaged: tuple[str, ...] = ()
    except _DamagedFilesError as files:
        damaged = files.args
    with created_paths() as paths:
        try:
            result = call.function(call.job)
        except MemoryError as error:  # not about a document, else its error names the document
            raise memory_error(f"run `{call.function.__name__}`") from error
    _store_result(result, call.function, Path(call.folder), call.result_path, paths)
    return _JobOutcome(result, damaged=damaged)


FILES = TypeAdapter(dict[str, str])
"""Type of the files that a job wrote: path below the folder -> sha256."""
RESULT_PREFIX = b'{"sha256":"%s","job":'
"""Start of a stored result: the hash of everything after it, up to the closing brace."""


def _store_result(result: Any, function: Callable, folder: Path, name: str, paths: Iterable[Path]) -> None:
    files = {path.relative_to(folder).as_posix(): file_sha256(str(path)) for path in paths}
    job = b'{"files":%s,"result":%s}' % (json.dumps(files).encode(), _return_type(function).dump_json(result))
    write_atomically(folder / name, RESULT_PREFIX % hashlib.sha256(job).hexdigest().encode() + job + b"}")


def _load_result(function: Callable, folder: Path, name: str) -> Any:
    """Return the stored result of a build's job; raise `FileNotFoundError` if there is none, `_DamagedFilesError` if
    files changed."""
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        raise
    except OSError:  # unreadable: run the job again
        raise _DamagedFilesError(name) from None
    job = content[len(RESULT_PREFIX % bytes(64)) : -1]
    if content != RESULT_PREFIX % hashlib.sha256(job).hexdigest().encode() + job + b"}":
        raise _DamagedFilesError(name)
    try:
        parsed = json.loads(job)
        result = _return_type(function).validate_json(json.dumps(parsed["result"]), strict=True)
        files = FILES.validate_python(parsed["files"])
    except (ValueError, LookupError, TypeError, ValidationError):  # not written by this code
        raise _DamagedFilesError(name) from None
    if damaged := [file for file, sha256 in files.items() if not _has_hash(folder / file, sha256)]:
        raise _DamagedFilesError(*damaged)
    return result


def _has_hash(path: Path, sha256: str) -> bool:
    try:
        return file_sha256(str(path)) == sha256
    except (OSError, UserError):  # missing or unreadable: run the job again
        return False


@lru_cache(maxsize=64)
def _return_type(function: Callable) -> TypeAdapter[Any]:
    """Return a type adapter for the function's return type, to write and validate results in JSON."""
    return TypeAdapter(get_type_hints(function)["return"])


def job_key(function: Callable, job: Any) -> str:
    """Return the key of a job, equal for equal jobs in every process and on every machine."""
    digest = hashlib.blake2b(digest_size=16)
    for token in _key_parts((VERSION, function.__module__, function.__qualname__, job)):
        digest.update(len(token).to_bytes(8, "little"))
        digest.update(token)
    return digest.hexdigest()


def _key_parts(value: Any) -> Iterator[bytes]:
    if is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        for field in fields(value):
            yield field.name.encode()
            yield from _key_parts(getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key in sorted(value):
            yield from _key_parts((key, value[key]))
    elif isinstance(value, tuple | list):
        yield f"sequence {len(value)}".encode()
        for entry in value:
            yield from _key_parts(entry)
    else:
        assert value is None or isinstance(value, str | bytes | int | float | Path), f"a job holds {value!r}"
        yield repr(value).encode()
