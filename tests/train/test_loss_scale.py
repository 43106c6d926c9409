"""Runs in fp16: skipped steps are recorded, and the loss scale survives a restart."""

import pytest

from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from tests.drills.program import arguments
from tests.forked import megaptm

FP16 = ("train.precision=fp16", "train.loss_scale.initial=1e12", "train.steps=30")


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    """Return a run, the same run with a restart while its loss scale still falls, and what the first printed."""
    folder = tmp_path_factory.mktemp("fp16")
    words = [arguments("gpt2", folder / name, real_corpus("byte-bpe"), *FP16) for name in ("whole", "restarted")]
    printed = megaptm("train", *words[0])
    megaptm("train", *words[1], "train.stop_at=5", code=75)
    megaptm("train", *words[1])
    return folder / "whole", folder / "restarted", printed


def skipped(run):
    return {event["step"]: event["loss_scale"] for event in read_events(run) if event["kind"] == "skipped-step"}


def test_steps_are_skipped_until_the_scale_fits(runs):
    run, _, printed = runs
    steps = list(skipped(run))
    assert 5 < len(steps) < 25
    assert steps[:6] == [1, 2, 3, 4, 5, 6]
    assert [skipped(run)[step] for step in (1, 2, 3)] == [1e12, 5e11, 2.5e11]
    assert "step 2/30  skipped: infinite gradients at loss scale 5e+11" in printed


def test_metrics_have_the_scale_and_no_loss_of_skipped_steps(runs):
    run, _, _ = runs
    records = {record["step"]: record for record in read_metrics(run) if "samples" in record}
    assert list(records) == list(range(1, 31))
    assert {step for step, record in records.items() if "loss" not in record} == skipped(run).keys()
    assert {step for step, record in records.items() if "gradient_norm" not in record} == skipped(run).keys()
    assert records[30]["loss_scale"] < 1e9


def test_restart_continues_with_the_scale(runs):
    uninterrupted, restarted, _ = runs
    assert skipped(restarted) == skipped(uninterrupted)
    losses = [
        [record["loss"] for record in read_metrics(run) if "loss" in record] for run in (uninterrupted, restarted)
    ]
    assert losses[0] == losses[1]


def test_report_counts_skipped_steps(runs):
    run, _, _ = runs
    report = megaptm("report", str(run))
    assert f"steps skipped by the loss scale  {len(skipped(run))}" in report
