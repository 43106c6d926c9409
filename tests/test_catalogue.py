"""Catalogue of the requirements (tests/catalogue.yaml): each has a status, and each that is done has tests."""

from __future__ import annotations

import ast
from functools import cache

import pytest
import yaml

from tests import ROOT

ROWS = yaml.safe_load((ROOT / "tests/catalogue.yaml").read_text(encoding="utf-8"))


def missing_proof(proof: str) -> str:
    """Return the file or test of a proof that does not exist, or an empty string."""
    path, _, test = proof.partition("::")
    if not (ROOT / path).is_file():
        return path
    if not test:  # a config; of tests one must be named
        return proof if path.startswith("tests/") else ""
    return "" if test in names_of_tests(path) else proof


@cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_rows_are_complete() -> None:
    assert [*ROWS] == [f"S{number:03}" for number in range(1, 273)]
    for row in ROWS.values():
        assert row["item"]
        assert row["status"] in ("done", "refused", "later")


@pytest.mark.parametrize("name", ROWS)
def test_proofs_exist(name: str) -> None:
    row = ROWS[name]
    match row["status"]:
        case "done":
            assert any("::" in proof for proof in row["proof"])
            assert not [*filter(None, map(missing_proof, row["proof"]))]
        case "refused":
            assert row["reason"]
        case _:
            assert "proof" not in row


def test_missing_proof_is_found() -> None:
    assert missing_proof("tests/test_catalogue.py::test_missing_proof_is_found") == ""
    assert missing_proof("tests/test_catalogue.py::test_absent") == "tests/test_catalogue.py::test_absent"
    assert missing_proof("tests/test_catalogue.py") == "tests/test_catalogue.py"
    assert missing_proof("tests/test_catalogue.py::missing_proof") == "tests/test_catalogue.py::missing_proof"
    assert missing_proof("configs/gpt2/huge.yaml") == "configs/gpt2/huge.yaml"
