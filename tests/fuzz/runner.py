"""Runner of cases in forked children. They share all imports, and may die, hang or grow."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, ClassVar

from megaptm.errors import UserError, storage_errors_as_user_errors
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

CPU_SECONDS = 20.0
"""CPU seconds after which a case hangs. On a busy machine, the clock limit is longer."""
CLOCK_SECONDS = 120.0
MAX_BYTES = 2 << 30
MAX_SENTENCE, MAX_SENTENCES = 1010, 22
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case."""

    target: str
    mode: str
    """`read` (in this process) or `command`."""
    number: int
    kind: str
    """`same`, `changed`, `refused`; or a failure: `traceback`, `hang`, `memory`, `died`, `outside`, `sentence`,
    `silent`."""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.kind not in ("same", "changed", "refused")


def run_cases(target: Target, mode: str, numbers: list[int], *, seed: int, sandbox: Path) -> Iterator[Outcome]:
    """Run cases in as few children as possible. `sandbox` has the folder `materials`."""
    remaining = list(numbers)
    while remaining:
        done = 0
        for outcome in _fork_child(target, mode, remaining, seed, sandbox):
            done += 1
            yield outcome
            if outcome.failed and outcome.kind in ("hang", "memory", "died"):
                break
        remaining = remaining[done:]


def _fork_child(target: Target, mode: str, numbers: list[int], seed: int, sandbox: Path) -> Iterator[Outcome]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _run_in_child(target, mode, numbers, seed, sandbox, writing)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        buffer = bytearray()
        for number in numbers:
            outcome = _wait_for_outcome(child, reading, buffer, target.name, mode, number)
            yield outcome
            if outcome.kind in ("hang", "memory", "died"):
                return
    finally:
        os.close(reading)
        try:
            os.kill(child, signal.SIGKILL)
        finally:
            os.waitpid(child, 0)


def _wait_for_outcome(child: int, reading: int, buffer: bytearray, target: str, mode: str, number: int) -> Outcome:
    """Return the outcome that a child reports, or that it hangs, grows or died."""
    start_time, cpu = time.monotonic(), _cpu_seconds(child)
    while b"\n" not in buffer:
        if wait([reading], 0.05):
            received = os.read(reading, 65536)
            if not received:
                return Outcome(target, mode, number, "died", "without output")
            buffer += received
            continue
        if _cpu_seconds(child) - cpu > CPU_SECONDS or time.monotonic() - start_time > CLOCK_SECONDS:
            return Outcome(target, mode, number, "hang", _find_line(child))
        if _resident(child) > MAX_BYTES:
            return Outcome(target, mode, number, "memory", _find_line(child))
    line, _, remaining = bytes(buffer).partition(b"\n")
    buffer[:] = remaining
    kind, detail = json.loads(line)
    return Outcome(target, mode, number, kind, detail)


def _cpu_seconds(child: int) -> float:
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _resident(child: int) -> int:
    return int(Path(f"/proc/{child}/statm").read_text().split()[1]) * PAGE


def _find_line(child: int) -> str:
    """Return the last line of the project in the stack of a child."""
    os.kill(child, signal.SIGUSR2)
    time.sleep(0.3)
    try:
        lines = Path(tempfile.gettempdir(), f"stack-{child}").read_text().splitlines()
    except OSError:
        return "?"
    project_lines = [line.strip() for line in lines if "megaptm/" in line or "data_pipeline/" in line]
    return project_lines[0] if project_lines else (lines[1] if len(lines) > 1 else "?")


def _run_in_child(target: Target, mode: str, numbers: list[int], seed: int, sandbox: Path, writing: int) -> None:
    stack = Path(tempfile.gettempdir(), f"stack-{os.getpid()}").open("w")  # noqa: SIM115  (until the end)
    faulthandler.register(signal.SIGUSR2, file=stack)
    scratch = sandbox / "scratch" / str(os.getpid())
    case = sandbox / "deep/er" / f"{os.getpid()}"
    for folder in (scratch, case):
        folder.mkdir(parents=True)
    (case / "materials").symlink_to(sandbox / "materials")
    tempfile.tempdir = str(scratch)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    escapes = _EscapeHook((case, scratch, Path(tempfile.gettempdir())))
    sys.addaudithook(escapes.hook)
    for number in numbers:
        folder = case / "it"
        shutil.copytree(sandbox / "materials" / target.folder, folder)
        escapes.active = True
        kind, detail = _run_case(target, mode, number, seed, folder)
        escapes.active = False
        if escapes.escaped:
            kind, detail = "outside", escapes.escaped.pop()
            escapes.escaped.clear()
        shutil.rmtree(folder, ignore_errors=True)
        os.write(writing, json.dumps([kind, detail]).encode() + b"\n")
    shutil.rmtree(case, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def _run_case(target: Target, mode: str, number: int, seed: int, folder: Path) -> tuple[str, str]:
    rng = random.Random(f"{seed}/{target.name}/{mode}/{number}")
    is_detectable = target.change(folder, rng)
    if mode == "command":
        commands = target.commands(folder)
        return run_command(commands[number % len(commands)])
    try:
        with storage_errors_as_user_errors("it"):
            content = target.read(folder)
    except UserError as error:
        return check_sentence(str(error))
    except BaseException as error:
        return "traceback", _describe_error(error)
    if content == _read_unchanged(target, folder):
        return "same", ""
    return ("silent", "other content was read without an error") if is_detectable else ("changed", "")


_KNOWN: dict[str, Any] = {}


def _read_unchanged(target: Target, folder: Path) -> Any:
    """Return what is read from the unchanged files."""
    if target.name not in _KNOWN:
        unchanged = folder.with_name("good")
        shutil.copytree(folder.parent / "materials" / target.folder, unchanged)
        _KNOWN[target.name] = target.read(unchanged)
        shutil.rmtree(unchanged)
    return _KNOWN[target.name]


def run_command(words: list[str]) -> tuple[str, str]:
    """Run `megaptm WORDS` in this process; return the kind of outcome and details."""
    from megaptm.__main__ import main

    err, out = io.StringIO(), io.StringIO()
    sys.stderr, sys.stdout = err, out
    try:
        main.main(args=words, prog_name="megaptm", standalone_mode=True)
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        return "traceback", f"{words[0]} {words[1]}: {_describe_error(error)}"
    finally:
        sys.stderr, sys.stdout = sys.__stderr__, sys.__stdout__
    errors = err.getvalue()
    if "Traceback (most recent" in errors:
        return "traceback", f"{words[:2]}: {errors[-300:]}"
    if code == 0 or (code == 1 and words[:2] == ["corpus", "verify"]):
        return "same", ""
    lines = [line for line in errors.splitlines() if line.lower().startswith("error: ")]
    if code != 2 or len(lines) != 1:
        return "sentence", f"{words[:2]}: exit code {code}: {errors[-300:]}"
    return check_sentence(lines[0])


def check_sentence(message: str) -> tuple[str, str]:
    """Check an error message: one line, except for a list of mistakes in a config."""
    lines = message.split("\n  ")
    if any("\n" in line or len(line) > MAX_SENTENCE for line in lines) or len(lines) > MAX_SENTENCES:
        return "sentence", f"{len(message)} characters, {message.count(chr(10)) + 1} lines: {message[:200]!a}"
    return "refused", message[:200]


def _describe_error(error: BaseException) -> str:
    """Describe an error and the last function of the project in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    project_frames = [frame for frame in frames if "/megaptm/" in frame.filename or "/data_pipeline/" in frame.filename]
    at = (
        f"{Path(project_frames[-1].filename).name}:{project_frames[-1].lineno} {project_frames[-1].name}"
        if project_frames
        else "?"
    )
    return f"{type(error).__name__} at {at}: {str(error)[:160]!a}"


class _EscapeHook:
    """Audit hook that records files that are written, created, renamed or removed outside the allowed folders."""

    PATH_ARGUMENTS: ClassVar = {
        "os.mkdir": (0,),
        "os.rename": (0, 1),
        "os.remove": (0,),
        "os.rmdir": (0,),
        "os.symlink": (1,),
        "os.link": (1,),
    }

    def __init__(self, allowed: tuple[Path, ...]) -> None:
        self.allowed = ("/dev/", "/proc/", *(str(folder.resolve()) for folder in allowed))
        self.escaped: list[str] = []
        self.active = False

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, mode, flags = args
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or any(c in (mode or "") for c in "wax+")
            self._note(event, path if writes else None)
        elif event in self.PATH_ARGUMENTS:
            for index in self.PATH_ARGUMENTS[event]:
                # A name relative to an open folder (shutil.rmtree) is unknown here, but opening the folder was checked.
                self._note(event, args[index] if args[-1] == -1 or os.path.isabs(args[index]) else None)

    def _note(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        full = os.path.realpath(os.fsdecode(path))
        if not full.startswith(self.allowed) and "__pycache__" not in full:
            self.escaped.append(f"{event} {full}")


def run_one_case(name: str, mode: str, number: int, *, seed: int, sandbox: Path) -> None:
    """Run one case in this process, and let its error propagate."""
    target = TARGETS[name]
    folder = sandbox / "explained"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sandbox / "materials" / target.folder, folder)
    target.change(folder, random.Random(f"{seed}/{target.name}/{mode}/{number}"))
    print(folder)
    if mode == "command":
        commands = target.commands(folder)
        print(commands[number % len(commands)], run_command(commands[number % len(commands)]))
    else:
        print(target.read(folder))
