"""Untrusted texts and names are shown literally on the terminal."""

import io
import logging

import pytest
from rich.table import Table

from megaptm.commands.output import echo
from megaptm.console import Console
from megaptm.errors import printable
from megaptm.processes import escape_log_messages
from megaptm.report.terminal import TimedLog


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, é, 漢, \u05d0", "plain, é, 漢, \u05d0"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J\r\x7f", r"\x9b2J\r\x7f"),
        ("gnp.\u202etxt", r"gnp.\u202etxt"),
        ("name-\udcff", r"name-\udcff"),
    ],
)
def test_control_characters_are_escaped(text, expected):
    assert printable(text) == expected


def shown(renderable):
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("text", ["[red]x[/red]", "[/]", "a]b[c", ":smile:", "[link=http://a]x[/link]"])
def test_markup_is_shown_literally(text):
    assert shown(text) == f"{text}\n"


def test_escape_sequences_in_tables_are_escaped():
    table = Table("\x1b[2J")
    table.add_row("\x1b[31m[bold]")
    assert "\x1b[2J" not in shown(table)
    assert r"\x1b[31m[bold]" in shown(table)


def test_echo_escapes_control_characters(capsys):
    echo("run \x1b[2J is there")
    assert capsys.readouterr().out == "run \\x1b[2J is there\n"


def test_startup_log_escapes_control_characters():
    stream = io.StringIO()
    TimedLog(stream=stream)("starts with the weights of runs/\x1b[2J")
    assert stream.getvalue().endswith("s  starts with the weights of runs/\\x1b[2J\n")


def test_warnings_escape_control_characters(monkeypatch, capsys):
    """The upload state of a received run names any folder."""
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    escape_log_messages()
    record = logging.LogRecord("megaptm", logging.WARNING, "", 0, "a copy of %s", ("/runs/\x1b[2J",), None)
    logging.lastResort.handle(record)
    assert capsys.readouterr().err == "a copy of /runs/\\x1b[2J\n"
