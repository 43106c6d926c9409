"""The command line in this process, given something that cannot work."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.errors import EXIT_USER_ERROR

CONFIGS = Path(__file__).parents[2] / "configs"


def told(*words: str | Path) -> str:
    """The one sentence that `megaptm WORDS` ends with; anything else it says or does is a failure."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == EXIT_USER_ERROR, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith((".", "?", "FOLDER"))
    return line.removeprefix("error: ")


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, to see that nothing in it has changed; empty where there is none."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
