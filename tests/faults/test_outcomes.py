"""Journals of a campaign of faults that was run in parts."""

from dataclasses import asdict

from megaptm.storage import JournalFile
from tests.faults.outcomes import Outcome, report


def write(path, *outcomes):
    journal = JournalFile(path)
    for outcome in outcomes:
        journal.append(asdict(outcome))
    journal.append({"summary": f"part {path.stem}", "is_good": True})
    journal.close()


def test_report_adds_up_parts(tmp_path):
    skipped = Outcome(1, "NaN", recovered=3.0, skipped=[[48, 95]])
    write(tmp_path / "a.jsonl", skipped, Outcome(1, "NaN", recovered=3.0, skipped=[[48, 95]], is_compared=True))
    write(tmp_path / "b.jsonl", Outcome(1, "NaN", detected=1.0, recovered=5.0, is_compared=True))
    text, is_good = report([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], ["kill", "NaN"])
    assert "| NaN | 2 | 1.0 s | 4.0 s, at most 5.0 s | 0 | samples 48-95 skipped; same losses |" in text
    assert "part a" in text
    assert is_good


def test_fault_without_comparison_fails(tmp_path):
    write(tmp_path / "a.jsonl", Outcome(1, "kill", is_compared=True), Outcome(2, "kill"))
    text, is_good = report([tmp_path / "a.jsonl"], ["kill"])
    assert "failed or not compared: 1" in text
    assert not is_good
