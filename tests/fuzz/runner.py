"""Runs cases in forked children, which have everything imported and may die, hang or grow without harm to others."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from megaptm.errors import UserError, storage_errors_as_user_errors
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

CPU_SECONDS = 20.0
"""After which a case hangs; on a machine that others use, by the clock it may take longer."""
CLOCK_SECONDS = 120.0
MOST_BYTES = 2 << 30
LONGEST_SENTENCE, MOST_SENTENCES = 1010, 22
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    target: str
    how: str
    """`read` in this process or `command`."""
    number: int
    kind: str
    """`same`, `changed`, `refused`; else a failure: `traceback`, `hang`, `memory`, `died`, `outside`, `sentence`,
    `silent`."""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.kind not in ("same", "changed", "refused")


def run_cases(target: Target, how: str, numbers: list[int], *, seed: int, sandbox: Path) -> Iterator[Outcome]:
    """Every case, in as few children as it takes. `sandbox` has the folder `materials`."""
    left = list(numbers)
    while left:
        done = 0
        for outcome in _in_child(target, how, left, seed, sandbox):
            done += 1
            yield outcome
            if outcome.failed and outcome.kind in ("hang", "memory", "died"):
                break
        left = left[done:]


def _in_child(target: Target, how: str, numbers: list[int], seed: int, sandbox: Path) -> Iterator[Outcome]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _be_child(target, how, numbers, seed, sandbox, writing)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        buffer = bytearray()
        for number in numbers:
            outcome = _watch(child, reading, buffer, target.name, how, number)
            yield outcome
            if outcome.kind in ("hang", "memory", "died"):
                return
    finally:
        os.close(reading)
        try:
            os.kill(child, signal.SIGKILL)
        finally:
            os.waitpid(child, 0)


def _watch(child: int, reading: int, buffer: bytearray, target: str, how: str, number: int) -> Outcome:
    """The child's word on a case, or what it did in place of one."""
    begun, cpu = time.monotonic(), _cpu_seconds(child)
    while b"\n" not in buffer:
        ready, _, _ = select.select([reading], [], [], 0.05)
        if ready:
            came = os.read(reading, 65536)
            if not came:
                return Outcome(target, how, number, "died", "without a word")
            buffer += came
            continue
        if _cpu_seconds(child) - cpu > CPU_SECONDS or time.monotonic() - begun > CLOCK_SECONDS:
            return Outcome(target, how, number, "hang", _where(child))
        if _resident(child) > MOST_BYTES:
            return Outcome(target, how, number, "memory", _where(child))
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    kind, detail = json.loads(line)
    return Outcome(target, how, number, kind, detail)


def _cpu_seconds(child: int) -> float:
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _resident(child: int) -> int:
    return int(Path(f"/proc/{child}/statm").read_text().split()[1]) * PAGE


def _where(child: int) -> str:
    """The last line of ours in the child's stack."""
    os.kill(child, signal.SIGUSR2)
    time.sleep(0.3)
    try:
        lines = Path(tempfile.gettempdir(), f"stack-{child}").read_text().splitlines()
    except OSError:
        return "?"
    ours = [line.strip() for line in lines if "megaptm/" in line or "data_pipeline/" in line]
    return ours[0] if ours else (lines[1] if len(lines) > 1 else "?")


def _be_child(target: Target, how: str, numbers: list[int], seed: int, sandbox: Path, writing: int) -> None:
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
    escapes = _Escapes((case, scratch, Path(tempfile.gettempdir())))
    sys.addaudithook(escapes.hook)
    for number in numbers:
        folder = case / "it"
        shutil.copytree(sandbox / "materials" / target.folder, folder)
        escapes.active = True
        kind, detail = _judge(target, how, number, seed, folder)
        escapes.active = False
        if escapes.seen:
            kind, detail = "outside", escapes.seen.pop()
            escapes.seen.clear()
        shutil.rmtree(folder, ignore_errors=True)
        os.write(writing, json.dumps([kind, detail]).encode() + b"\n")
    shutil.rmtree(case, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def _judge(target: Target, how: str, number: int, seed: int, folder: Path) -> tuple[str, str]:
    draw = random.Random(f"{seed}/{target.name}/{how}/{number}")
    told = target.change(folder, draw)
    if how == "command":
        commands = target.commands(folder)
        return command(commands[number % len(commands)])
    try:
        with storage_errors_as_user_errors("it"):
            found = target.read(folder)
    except UserError as error:
        return sentence(str(error))
    except BaseException as error:
        return "traceback", _short(error)
    if found == _good(target, folder):
        return "same", ""
    return ("silent", "read other things without a word") if told else ("changed", "")


_KNOWN: dict[str, Any] = {}


def _good(target: Target, folder: Path) -> Any:
    """What is read of the good files."""
    if target.name not in _KNOWN:
        good = folder.with_name("good")
        shutil.copytree(folder.parent / "materials" / target.folder, good)
        _KNOWN[target.name] = target.read(good)
        shutil.rmtree(good)
    return _KNOWN[target.name]


def command(words: list[str]) -> tuple[str, str]:
    """What `megaptm WORDS` does, in this process."""
    from megaptm.__main__ import main

    err, out = io.StringIO(), io.StringIO()
    sys.stderr, sys.stdout = err, out
    try:
        main.main(args=words, prog_name="megaptm", standalone_mode=True)
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        return "traceback", f"{words[0]} {words[1]}: {_short(error)}"
    finally:
        sys.stderr, sys.stdout = sys.__stderr__, sys.__stdout__
    said = err.getvalue()
    if "Traceback (most recent" in said:
        return "traceback", f"{words[:2]}: {said[-300:]}"
    if code == 0 or (code == 1 and words[:2] == ["corpus", "verify"]):
        return "same", ""
    lines = [line for line in said.splitlines() if line.lower().startswith("error: ")]
    if code != 2 or len(lines) != 1:
        return "sentence", f"{words[:2]}: exit code {code}: {said[-300:]}"
    return sentence(lines[0])


def sentence(said: str) -> tuple[str, str]:
    """One on a line; several mistakes of a config stand below the line that counts them."""
    lines = said.split("\n  ")
    if any("\n" in line or len(line) > LONGEST_SENTENCE for line in lines) or len(lines) > MOST_SENTENCES:
        return "sentence", f"{len(said)} characters, {said.count(chr(10)) + 1} lines: {said[:200]!a}"
    return "refused", said[:200]


def _short(error: BaseException) -> str:
    """The error, and the last place of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/megaptm/" in frame.filename or "/data_pipeline/" in frame.filename]
    at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else "?"
    return f"{type(error).__name__} at {at}: {str(error)[:160]!a}"


class _Escapes:
    """Notes every file that is opened for writing, made, renamed or removed where none should be."""

    PLACES: ClassVar = {
        "os.mkdir": (0,),
        "os.rename": (0, 1),
        "os.remove": (0,),
        "os.rmdir": (0,),
        "os.symlink": (1,),
        "os.link": (1,),
    }

    def __init__(self, allowed: tuple[Path, ...]) -> None:
        self.allowed = ("/dev/", "/proc/", *(str(folder.resolve()) for folder in allowed))
        self.seen: list[str] = []
        self.active = False

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, mode, flags = args
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or any(c in (mode or "") for c in "wax+")
            self._note(event, path if writes else None)
        elif event in self.PLACES:
            for place in self.PLACES[event]:
                # A name in a folder that is open (shutil.rmtree) cannot be told from here; what opened it was.
                self._note(event, args[place] if args[-1] == -1 or os.path.isabs(args[place]) else None)

    def _note(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        full = os.path.realpath(os.fsdecode(path))
        if not full.startswith(self.allowed) and "__pycache__" not in full:
            self.seen.append(f"{event} {full}")


def explain(name: str, how: str, number: int, *, seed: int, sandbox: Path) -> None:
    """Run one case in this process, and let its error come out."""
    target = TARGETS[name]
    folder = sandbox / "explained"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sandbox / "materials" / target.folder, folder)
    target.change(folder, random.Random(f"{seed}/{target.name}/{how}/{number}"))
    print(folder)
    if how == "command":
        commands = target.commands(folder)
        print(commands[number % len(commands)], command(commands[number % len(commands)]))
    else:
        print(target.read(folder))
