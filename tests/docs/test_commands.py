"""Every command in README, docs, help and messages does what it is shown to do, in the order in which it stands.

What needs a cluster, a bucket or a model of many gigabytes is checked as far as it goes without.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from data_pipeline.images import build
from data_pipeline.recipe import read_recipe
from megaptm.__main__ import main
from megaptm.config import load, resolve
from tests import ROOT
from tests.docs.commands import PAGES, PROGRAMS, Command, commands_of, every_command, inner, parsed
from tests.forked import megaptm

# Where a run is made small: less text, fewer steps. A later word wins, so all else is as it is shown.
SMALLER = {
    "corpus build": ["limit_bytes=600000", "workers=0"],
    "train": ["train.steps=4", "train.validate_every=2", "train.validate_batches=1", "checkpoint.every=2"],
    "cache-logits": ["train.steps=4", "train.validate_batches=1"],
    "evaluate": ["--rows", "4"],
    "generate": ["--tokens", "8"],
    "launch ray": ["--dry-run"],
}
COMMANDS = (
    *("corpus build", "corpus images", "corpus inspect", "corpus verify", "train", "report", "evaluate", "generate"),
    *("export hf", "import hf", "plan", "check", "launch ray", "cache-logits"),
)
SMALL_CONFIG = re.compile(r"configs/(\w+/tiny|demo/\w+)\.yaml")
# Buckets, shared disks, other machines, and words that stand for something.
ELSEWHERE = re.compile(r"s3://|/shared/|\b\d+\.\d+\.\d+\.\d+:\d+|\b[A-Z]{4,}\b")
# The family of that page is made up; tests/docs/test_add_a_family.py runs what it shows.
MADE_UP = "add-a-family.md"


def is_run(command: Command) -> bool:
    """Whether the command is run as it stands, or only looked at."""
    words = inner(command.words)
    if words is None or command.words[0] != "megaptm" or ELSEWHERE.search(command.text) or command.page == MADE_UP:
        return False
    config = next((word for word in words if word.endswith(".yaml")), "")
    match words[0]:
        case "plan":
            return "--dry-run" not in words  # builds ranks of 175B: tests/plan/test_dry_run.py
        case "launch":  # Ray starts here once; the rest is for tests/real
            return words[1] == "ray" and command.page == "README.md"
        case "train":
            return SMALL_CONFIG.match(config) is not None
        case "check":
            return bool(config)
        case "import":
            return words[2].startswith("exported/")  # not from the hub
    return True


def smaller(words: list[str]) -> list[str]:
    return next((words + more for name, more in SMALLER.items() if words[: len(name.split())] == name.split()), words)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with what a clone has, and a reader's books."""
    place = tmp_path_factory.mktemp("reader")
    for name in ("configs", "slurm", "cluster", "docs", "Makefile", ".ci", "pyproject.toml"):
        (place / name).symlink_to(ROOT / name)
    books = place / "books" / "english"
    books.mkdir(parents=True)
    for number, source in enumerate(sorted(Path(os.__file__).parent.glob("[a-f]*.py"))[:40]):
        shutil.copy(source, books / f"{number}.txt")
    return place


def run(command: Command, place: Path) -> str:
    words = smaller(command.words[1:])
    # What README shows of training is started as a reader does; the rest spares itself the imports.
    if words[0] == "train" and command.page != "README.md":
        return megaptm(*words, "track.enabled=false", folder=place)
    if words[0] in ("train", "launch"):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", shlex.join(["megaptm", *words])],
            cwd=place, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said, code = done.stdout + done.stderr, done.returncode
    else:
        shown = CliRunner().invoke(main, words)
        said, code = shown.output, shown.exit_code
        if shown.exception is not None and not isinstance(shown.exception, SystemExit):
            raise shown.exception
    # A check that finds a fault, as of corpora that are not there, has done what it is for.
    assert code in ((0, 2) if words[0] == "check" else (0,)), f"{command}\n{said}"
    return said


def test_what_is_shown_runs_in_its_order(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    # A quarter of the regions that `megaptm corpus images shapes regions=true` makes.
    monkeypatch.setattr(build, "write_region_shapes", partial(build.write_region_shapes, images=512))
    ran = []
    for page in PAGES:
        # Each page has its own runs; what was built for one is there for the next.
        shutil.rmtree(place / "runs", ignore_errors=True)
        for command in filter(is_run, commands_of(page)):
            run(command, place)
            ran.append(command.text)
    begun = {name for text in ran for name in COMMANDS if text.startswith(f"megaptm {name} ")}
    assert begun == set(COMMANDS), "a command that the pages no longer show running"


@pytest.mark.parametrize("command", every_command(), ids=str)
def test_a_command_is_one_that_there_is(command: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options, the files it names, the config that it asks for, settled as it would be before the start."""
    monkeypatch.chdir(place)
    words = command.words
    if (ours := inner(words)) is not None:
        parsed(ours)
        settled(ours, made_up=command.page == MADE_UP)
    elif words[0] == "make":
        subprocess.run(["make", "-n", words[1]], check=True, capture_output=True)
    elif words[0] == "sbatch":
        script = next(word for word in words[1:] if word.endswith(".sh"))
        subprocess.run(["bash", "-n", script], check=True)
        [own] = re.findall(r'^train (.*?) "\$@"', Path(script).read_text(), re.MULTILINE)
        settled(["train", *own.split(), *words[words.index(script) + 1 :]])
    for word in words:
        if re.match(r"(configs|slurm|cluster|docs)/", word) and command.page != MADE_UP:
            assert Path(word).exists(), word


def settled(words: list[str], *, made_up: bool = False) -> None:
    files = [word for word in words if word.endswith(".yaml")]
    values = [word for word in words[1:] if "=" in word and not word.startswith(("-", "corpus."))]
    if words[:2] == ["corpus", "build"]:
        keys = ("out=", "workers=", "overwrite=", "scratch=")
        sources = [word for word in words[2:] if "=" not in word]
        read_recipe(sources, [word for word in words[2:] if "=" in word and not word.startswith(keys)])
    elif files and not made_up and words[0] in ("train", "launch", "plan", "check", "import"):
        # A later config takes the place of an earlier one, as slurm/common.sh has it.
        resolve(load(files[-1] if words[0] == "train" else files[0], values))


def test_commands_in_sentences_are_commands(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for page in PAGES:
        for text in re.findall(r"`(megaptm [^`]+)`", page.read_text(encoding="utf-8")):
            accepted(text, page.name)


def test_help_and_messages_recommend_commands_that_there_are() -> None:
    """`megaptm ...` in any string of ours, and on the indented lines of docstrings, which are the commands' help."""
    found = list(recommended())
    assert len(found) > 40
    for where, text in found:
        accepted(text, where)


def test_an_option_that_a_message_names_is_one_of_a_command() -> None:
    ours = {*options(main), *OTHER_PROGRAMS}
    seen = 0
    for where, text in strings(within=("UserError", "UsageError", "Finding", "Fault", "secho", "echo")):
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            assert option in ours, f"{where}: {option} is an option of no command"
            seen += 1
    assert seen > 5


# Of Slurm and Ray, which messages name too.
OTHER_PROGRAMS = (
    *(
        "--signal",
        "--test-only",
        "--gres",
        "--partition",
        "--account",
        "--ntasks-per-node",
        "--requeue",
        "--no-requeue",
    ),
    "--working-dir",
)


def options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for inner_command in command.commands.values():
            yield from options(inner_command)


def strings(within: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every string constant of ours, with what a format fills in as X; or those in calls of these names only."""
    for package in ("megaptm", "data_pipeline"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) in within]
            for node in (inner_node for top in (calls if within else [tree]) for inner_node in ast.walk(top)):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def recommended() -> Iterator[tuple[str, str]]:
    for where, text in strings():
        if "\n" not in text:
            yield from ((where, found) for found in re.findall(r"`(megaptm [^`]+)`", text))
            continue
        joined = re.sub(r"\\\n\s*", "", text)
        yield from ((where, found) for found in re.findall(r"^ {4,}(megaptm [a-z].*)$", joined, re.MULTILINE))


def accepted(text: str, where: str) -> None:
    words = shlex.split(re.sub(r"\s+#\s.*", "", text))[1:]
    if not words or words[0].isupper() or words[-1] in ("...", "…"):
        return  # `megaptm COMMAND --help`
    try:
        if words[-1] in main.commands or (len(words) == 2 and isinstance(main.commands.get(words[0]), click.Group)):
            assert words[0] in main.commands, f"{where}: {text}"
            return  # a command by its name
        parsed(words)
    except click.exceptions.Exit:
        return  # --help, --version
    except click.ClickException as error:
        raise AssertionError(f"{where}: `{text}`: {error.format_message()}") from error


def test_no_command_of_a_page_goes_unseen() -> None:
    """Each program that begins a line of an indented block is one that these tests know."""
    for page in PAGES:
        seen = {command.line for command in commands_of(page)}
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if re.match(rf" {{4}}(\$ )?({'|'.join(PROGRAMS)})\s", line):
                assert number in seen, f"{page.name}:{number}"
