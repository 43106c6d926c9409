"""Texts and names from outside are shown on the terminal as they are, and never obeyed by it."""

import io

import pytest
from rich.table import Table

from megaptm.commands.output import echo
from megaptm.console import Console
from megaptm.errors import printable


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
def test_markup_in_a_text_is_text(text):
    assert shown(text) == f"{text}\n"


def test_no_escape_sequence_of_a_cell_reaches_the_terminal():
    table = Table("\x1b[2J")
    table.add_row("\x1b[31m[bold]")
    assert "\x1b[2J" not in shown(table)
    assert r"\x1b[31m[bold]" in shown(table)


def test_lines_of_commands_are_escaped(capsys):
    echo("run \x1b[2J is there")
    assert capsys.readouterr().out == "run \\x1b[2J is there\n"
