"""Commands in README, docs, help and messages are valid. Those of pages run in order, with less text and fewer steps.

Commands that need a cluster, a bucket or a large model are only parsed, and their configs resolved.
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
from functools import cache, partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from data_pipeline.recipe import read_recipe
from megaptm.__main__ import main
from megaptm.config import load_config, resolve_spec
from megaptm.families.uniter import image_recipe
from tests import ROOT
from tests.docs.commands import PAGES, PROGRAMS, Command, all_commands, commands_of, megaptm_arguments, parse_arguments
from tests.forked import megaptm

main.list_commands(click.Context(main))  # adds the commands of extensions

# Arguments that are appended to make a run small. Later ones take precedence.
SMALLER = {
    "corpus build": ["limit_bytes=250000", "workers=0"],
    "train": ["train.steps=2", "train.validate_every=1", "train.validate_batches=1", "checkpoint.every=1"],
    "cache-logits": ["train.steps=2", "train.validate_batches=1"],
    "evaluate": ["--rows", "4"],
    "generate": ["--tokens", "8"],
    "launch ray": ["--dry-run"],
}
COMMANDS = (
    *("corpus build", "corpus images", "corpus inspect", "corpus verify", "train", "report", "evaluate", "generate"),
    *("export hf", "import hf", "plan", "check", "launch ray", "cache-logits"),
)
SMALL_CONFIG = re.compile(r"configs/(\w+/tiny|demo/\w+)\.yaml")
# Buckets, shared disks, other machines and placeholders.
NOT_HERE = re.compile(r"s3://|/shared/|\b\d+\.\d+\.\d+\.\d+:\d+|\b(RUN|[A-Z]{4,})\b")
# Pages whose files the reader creates. tests/docs/test_add_a_family.py and test_tutorial.py run their commands.
WITH_OWN_FILES = ("add-a-family.md", "tutorial.md")


def is_run(command: Command) -> bool:
    """Return whether a command runs here, or is only parsed."""
    words = megaptm_arguments(command.words)
    if words is None or command.words[0] != "megaptm" or NOT_HERE.search(command.text):
        return False
    if command.page in WITH_OWN_FILES:
        return False
    config = next((word for word in words if word.endswith(".yaml")), "")
    match words[0]:
        case "plan":
            return "--dry-run" not in words  # builds ranks of 175B: tests/plan/test_dry_run.py
        case "launch":  # Ray starts here once; the rest is for tests/real
            return words[1] == "ray" and command.page == "README.md"
        case "train":
            has_code = any(word.startswith("callbacks=") for word in words)  # tests/train/test_callbacks.py writes it
            return SMALL_CONFIG.match(config) is not None and not has_code
        case "check":
            return bool(config)
        case "import":
            return words[2].startswith("exported/")  # not from the hub
    return True


def smaller(words: list[str]) -> list[str]:
    return next((words + more for name, more in SMALLER.items() if words[: len(name.split())] == name.split()), words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the files of a clone, and some books."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("configs", "slurm", "cluster", "docs", "Makefile", ".ci", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    books = folder / "books" / "english"
    books.mkdir(parents=True)
    for number, source in enumerate(sorted(Path(os.__file__).parent.glob("[a-f]*.py"))[:40]):
        shutil.copy(source, books / f"{number}.txt")
    return folder


def run(command: Command, folder: Path) -> str:
    words = smaller(command.words[1:])
    if words[0] == "train":  # forked, which saves the imports
        return megaptm(*words, "track.enabled=false", folder=folder)
    if words[0] == "launch":
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", shlex.join(["megaptm", *words])],
            cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        output, code = done.stdout + done.stderr, done.returncode
    else:
        result = CliRunner().invoke(main, words)
        output, code = result.output, result.exit_code
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
    # A check may report a fault, such as a missing corpus.
    assert code in ((0, 2) if words[0] == "check" else (0,)), f"{command}\n{output}"
    return output


def test_commands_of_pages_run_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    # A quarter of the regions that `megaptm corpus images shapes regions=true` makes.
    monkeypatch.setattr(image_recipe, "write_region_shapes", partial(image_recipe.write_region_shapes, images=512))
    ran = []
    for page in PAGES:
        # Runs are of one page; corpora remain for the next page.
        shutil.rmtree(folder / "runs", ignore_errors=True)
        for command in filter(is_run, commands_of(page)):
            if command.text in ran and command.words[1] == "plan":
                continue  # reads no files of the reader
            run(command, folder)
            ran.append(command.text)
    commands = {name for text in ran for name in COMMANDS if text.startswith(f"megaptm {name} ")}
    assert commands == set(COMMANDS), "pages no longer run a command"


@pytest.mark.parametrize("command", all_commands(), ids=str)
def test_command_is_valid(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, named files, and the config with its overrides."""
    monkeypatch.chdir(folder)
    words = command.words
    if (arguments := megaptm_arguments(words)) is not None:
        parse_arguments(arguments)
        resolve_config(arguments, with_files=command.page not in WITH_OWN_FILES)
    elif words[0] == "make":
        subprocess.run(["make", "-n", words[1]], check=True, capture_output=True)
    elif words[0] == "sbatch":
        script = next(word for word in words[1:] if word.endswith(".sh"))
        subprocess.run(["bash", "-n", script], check=True)
        [own] = re.findall(r'^train (.*?) "\$@"', Path(script).read_text(), re.MULTILINE)
        resolve_config(["train", *own.split(), *words[words.index(script) + 1 :]])
    for word in words:
        if re.match(r"(configs|slurm|cluster|docs)/", word) and command.page not in WITH_OWN_FILES:
            assert Path(word).exists(), word


def resolve_config(words: list[str], *, with_files: bool = True) -> None:
    """Resolve recipe or config of a command with its overrides."""
    files = [word for word in words if word.endswith(".yaml")]
    values = [word for word in words[1:] if "=" in word and not word.startswith(("-", "corpus."))]
    if words[:2] == ["corpus", "build"]:
        keys = ("out=", "workers=", "overwrite=", "scratch=")
        sources = [word for word in words[2:] if "=" not in word]
        read_recipe(sources, [word for word in words[2:] if "=" in word and not word.startswith(keys)])
    elif files and with_files and words[0] in ("train", "launch", "plan", "check", "import"):
        # The planner chooses this layout, for a machine that the test does not have.
        values = [value for value in values if value != "layout=auto"]
        # A later config replaces an earlier one, as in slurm/common.sh.
        resolve_spec(load_config(files[-1] if words[0] == "train" else files[0], values))


def test_commands_in_sentences_are_valid(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for page in PAGES:
        for text in re.findall(r"`(megaptm [^`]+)`", page.read_text(encoding="utf-8")):
            assert_valid(text, page.name)


def test_commands_in_help_and_messages_are_valid() -> None:
    """`megaptm ...` in strings, and on indented lines of docstrings, which are the help of commands."""
    commands = list(commands_in_strings())
    assert len(commands) > 40
    for where, text in commands:
        assert_valid(text, where)


def test_options_in_messages_exist() -> None:
    known = {*options(main), *OPTIONS_OF_OTHER_PROGRAMS}
    count = 0
    for where, text in strings(within=("UserError", "UsageError", "Finding", "Fault", "secho", "echo")):
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            assert option in known, f"{where}: {option} is an option of no command"
            count += 1
    assert count > 5


# Options of Slurm and Ray.
OPTIONS_OF_OTHER_PROGRAMS = (
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
    for parameter in command.get_params(click.Context(command)):
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for inner_command in command.commands.values():
            yield from options(inner_command)


def strings(within: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield position and text of string constants, or only those in calls of these names. Fields of f-strings are X."""
    for package in ("megaptm", "data_pipeline"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = parsed(path)
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) in within]
            for node in (inner_node for top in (calls if within else [tree]) for inner_node in ast.walk(top)):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def commands_in_strings() -> Iterator[tuple[str, str]]:
    for where, text in strings():
        if "\n" not in text:
            yield from ((where, command) for command in re.findall(r"`(megaptm [^`]+)`", text))
            continue
        joined = re.sub(r"\\\n\s*", "", text)
        yield from ((where, command) for command in re.findall(r"^ {4,}(megaptm [a-z].*)$", joined, re.MULTILINE))


def assert_valid(text: str, where: str) -> None:
    """Parse a command; a name of a command alone is valid too."""
    words = shlex.split(re.sub(r"\s+#\s.*", "", text))[1:]
    if not words or words[0].isupper() or words[-1] in ("...", "…"):
        return  # `megaptm COMMAND --help`
    try:
        if words[-1] in main.commands or (len(words) == 2 and isinstance(main.commands.get(words[0]), click.Group)):
            assert words[0] in main.commands, f"{where}: {text}"
            return  # a command by its name
        parse_arguments(words)
    except click.exceptions.Exit:
        return  # --help, --version
    except click.ClickException as error:
        raise AssertionError(f"{where}: `{text}`: {error.format_message()}") from error


def test_every_indented_command_is_tested() -> None:
    """A program at the start of an indented line is a command of these tests."""
    for page in PAGES:
        tested = {command.line for command in commands_of(page)}
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if re.match(rf" {{4}}(\$ )?({'|'.join(PROGRAMS)})\s", line):
                assert number in tested, f"{page.name}:{number}"
