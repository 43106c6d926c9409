"""Commands that write one file fail before they compute anything if the file cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.errors import UserError
from megaptm.families.macbert.corpus import build_similar_words
from megaptm.families.unimo.corpus.meanings import build_meanings
from megaptm.families.uniter.corpus.retrieve import RetrievalOptions, retrieve_documents

COMMANDS = {
    "similar-words": lambda out: build_similar_words("absent", "absent", out),
    "meanings": lambda out: build_meanings("absent", "absent", out),
    "retrieve": lambda out: retrieve_documents("absent", out, RetrievalOptions()),
}
OTHERS = (
    ("tokenizer", "train", "absent", "--out"),
    *(("export", kind, "absent") for kind in ("hf", "elmo", "cove", "words")),
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("/proc/x", r"--out ./proc/x. cannot be written .No such file or directory.: choose another path"),
        ("/proc/x/y", "cannot be written"),
        ("/dev/null/x", "cannot be written .Not a directory"),
        ("\ud800", "cannot be written .*surrogates"),
        ("~nobody-of-this-name/x", "cannot be written .*home"),
        ("s3://bucket/out", "is a URL: name a local file"),
        (".", "is a folder: name a file"),
    ],
)
def test_unwritable_output_file_is_rejected(command: str, out: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        COMMANDS[command](out)


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_unwritable_output_of_other_commands(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*words, "/proc/x"], catch_exceptions=False)
    assert result.exit_code == 2
    assert "(/proc/x) cannot be written (No such file or directory): choose another path." in result.stderr


def test_rejected_output_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent"):
        retrieve_documents("absent", str(tmp_path / "below/out"), RetrievalOptions())
    assert not [*tmp_path.iterdir()]
