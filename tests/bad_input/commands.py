"""Run commands with invalid input in this process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.errors import EXIT_USER_ERROR

CONFIGS = Path(__file__).parents[2] / "configs"


def user_error(*words: str | Path) -> str:
    """Return the error message of `megaptm WORDS`. Fail unless it is one sentence with the exit code of user errors."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == EXIT_USER_ERROR, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith((".", "?", "FOLDER"))
    return line.removeprefix("error: ")


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder, by relative path; empty if the folder is absent."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
