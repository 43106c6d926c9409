"""The catalogue of what megaptm sets out to do: every row has a status, and what is done a proof that exists."""

from __future__ import annotations

import ast

import pytest
import yaml

from tests import ROOT

ROWS = yaml.safe_load((ROOT / "tests/catalogue.yaml").read_text(encoding="utf-8"))


def missing(proof: str) -> str:
    """What a proof names and is not there; nothing where all is."""
    path, _, test = proof.partition("::")
    if not (ROOT / path).is_file():
        return path
    if not test:  # a config; of tests one must be named
        return proof if path.startswith("tests/") else ""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    return "" if test in tests else proof


def test_every_row_is_there_once_and_says_what_it_is() -> None:
    assert [*ROWS] == [f"S{number:03}" for number in range(1, 273)]
    for row in ROWS.values():
        assert row["item"]
        assert row["status"] in ("done", "refused", "later")


@pytest.mark.parametrize("name", ROWS)
def test_what_is_done_has_a_proof_that_exists(name: str) -> None:
    row = ROWS[name]
    match row["status"]:
        case "done":
            assert any("::" in proof for proof in row["proof"])
            assert not [*filter(None, map(missing, row["proof"]))]
        case "refused":
            assert row["reason"]
        case _:
            assert "proof" not in row


def test_a_proof_that_is_gone_is_found() -> None:
    assert missing("tests/test_catalogue.py::test_a_proof_that_is_gone_is_found") == ""
    assert missing("tests/test_catalogue.py::test_that_never_was") == "tests/test_catalogue.py::test_that_never_was"
    assert missing("tests/test_catalogue.py") == "tests/test_catalogue.py"
    assert missing("tests/test_catalogue.py::missing") == "tests/test_catalogue.py::missing"
    assert missing("configs/gpt2/huge.yaml") == "configs/gpt2/huge.yaml"
