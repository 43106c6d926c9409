"""Traces of a few steps, and what the metrics say of the device."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from megaptm.config import load_config
from megaptm.config.schedule import config_warnings
from megaptm.config.schema import ProfileConfig
from megaptm.errors import UserError
from megaptm.resilience.events import Events, read_events
from megaptm.track import read_metrics
from megaptm.train import device_use, profiler
from megaptm.train.profiler import RankTrace, StepTrace, _idle_share
from megaptm.train.trace import gpu_idle_share, traced_steps
from tests.drills.program import arguments
from tests.forked import megaptm
from tests.run.test_folder import TINY


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory) -> tuple[Path, Path, str]:
    """Return a run without a trace, the same run with one on two ranks that a stop cuts short, and its output."""
    folder = tmp_path_factory.mktemp("profile")
    plain, traced = (
        arguments("gpt2", folder / name, real_corpus("byte-bpe"), "train.steps=5", "layout.data=2", "model.dropout=0.1")
        for name in ("plain", "traced")
    )
    megaptm("train", *plain)
    profile = "train.profile={steps: [2, 4], ranks: [1, 0]}"
    printed = megaptm("train", *traced, profile, "train.stop_at=3", code=75)
    printed += megaptm("train", *traced, profile)
    return folder / "plain", folder / "traced", printed


def traces(run: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(run) if event["kind"] == "profile"]


def losses(run: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in read_metrics(run) if "loss" in record}


def test_traced_steps_have_the_same_losses(runs) -> None:
    plain, traced, _ = runs
    assert losses(traced) == losses(plain)
    assert len(losses(traced)) == 5


def test_each_job_traces_its_own_steps(runs) -> None:
    """The first job stops after step 3, the second continues with step 4."""
    _, traced, printed = runs
    first, second = traces(traced)
    assert first["files"] == ["profile/steps-2-3-rank-0.json.gz", "profile/steps-2-3-rank-1.json.gz"]
    assert second["files"] == ["profile/steps-4-4-rank-0.json.gz", "profile/steps-4-4-rank-1.json.gz"]
    assert (first["gpu_idle_share"], first["problems"]) == (None, [])
    assert sorted(path.name for path in (traced / "profile").iterdir()) == [
        Path(file).name for file in first["files"] + second["files"]
    ]
    assert "step 4/5  trace of steps 4 to 4: profile/steps-4-4-rank-0.json.gz, profile/steps-4-4-rank-1.json.gz" in (
        printed
    )


def test_trace_is_chrome_json_with_the_steps(runs) -> None:
    _, traced, _ = runs
    trace = json.loads(gzip.decompress((traced / "profile/steps-2-3-rank-1.json.gz").read_bytes()))
    assert [span.name for span in traced_steps(trace)] == ["megaptm step 2", "megaptm step 3"]
    names = {event["name"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"}
    assert {"aten::embedding", "aten::mm"} <= names


def test_trace_ends_before_the_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "all_gather_object", lambda value: [value])
    steps = profiler.StepProfiler(tmp_path, ProfileConfig(steps=[1, 2]), rank=0)
    for step in (1, 2):
        with steps.profile_step(step):
            torch.ones(3).sum()
    torch.ones(3).cumsum(0)
    (trace,) = steps.finish(2).ranks
    events = json.loads(gzip.decompress((tmp_path / trace.files[0]).read_bytes()))["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") == "cpu_op"}
    assert "aten::sum" in names
    assert "aten::cumsum" not in names


def test_report_names_traces_and_peak_memory(runs) -> None:
    _, traced, _ = runs
    report = megaptm("report", str(traced))
    assert f"Trace:   {traced}/profile/steps-2-3-rank-0.json.gz" in report
    assert "peak memory of rank 0" in report
    assert "MFU" not in report
    peaks = [record["peak_memory_bytes"] for record in read_metrics(traced) if "peak_memory_bytes" in record]
    assert all(peak > 50e6 for peak in peaks)


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        ("{steps: [4, 2]}", r"train\.profile\.steps \(4, 2\) must be the first and the last step of a trace"),
        ("{steps: [4, 6]}", r"at most train\.steps \(5\)"),
        ("{steps: [1, 2, 3]}", r"train\.profile\.steps"),
        ("{ranks: [0]}", r"train\.profile\.steps"),
    ],
)
def test_config_refuses_a_trace_outside_the_run(profile: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        load_config(TINY, ["run=run", "data.mix={corpus: 1}", "train.steps=5", f"train.profile={profile}"])


def test_rank_without_a_process_is_a_warning() -> None:
    """A run with traces may continue on fewer devices."""
    profile = "train.profile={steps: [4, 5], ranks: [1]}"
    config = load_config(TINY, ["run=run", "data.mix={corpus: 1}", "train.steps=5", profile])
    warning = "train.profile.ranks has 1, but the layout has 1 processes: it writes no trace."
    assert warning in [*config_warnings(config)]


def gpu_event(start: float, duration: float, *, category: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "gemm", "ts": start, "dur": duration}


def test_gpu_is_idle_where_no_stream_has_work() -> None:
    """The GPU is busy from 10 to 40 and from 70 to 90 of 100 microseconds. Annotations, and work before the first step,
    do not count."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "megaptm step 7", "ts": 1000.0, "dur": 50.0},
        {"ph": "X", "cat": "user_annotation", "name": "megaptm step 8", "ts": 1060.0, "dur": 40.0},
        gpu_event(900.0, 50.0),
        gpu_event(1010.0, 20.0),
        gpu_event(1020.0, 20.0),
        gpu_event(1012.0, 2.0, category="gpu_memset"),
        gpu_event(1070.0, 20.0, category="gpu_memcpy"),
        gpu_event(1000.0, 100.0, category="gpu_user_annotation"),
        {"ph": "i", "cat": "kernel", "name": "instant", "ts": 1050.0},
    ]
    assert gpu_idle_share({"traceEvents": events}) == pytest.approx(0.5)


def test_last_kernel_may_end_after_the_last_step() -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "megaptm step 1", "ts": 0.0, "dur": 50.0},
        gpu_event(50.0, 50.0),
    ]
    assert gpu_idle_share({"traceEvents": events}) == pytest.approx(0.5)


def test_invalid_json_has_no_idle_share() -> None:
    assert _idle_share(b'{"traceEvents": [') is None


def test_idle_share_of_a_trace_is_the_mean_of_its_ranks() -> None:
    trace = StepTrace(1, 2, [RankTrace(["a"], 0.1), RankTrace(["b", "c"], 0.3), RankTrace(problem="rank 2: full")])
    assert trace.gpu_idle_share == pytest.approx(0.2)
    assert trace.files == ["a", "b", "c"]
    assert trace.problems == ["rank 2: full"]


def test_failing_disk_costs_the_trace_and_not_the_run(real_corpus, tmp_path) -> None:
    run = tmp_path / "run"
    Events(run).close()
    words = arguments("gpt2", run, real_corpus("byte-bpe"), "train.steps=3")
    (run / "profile").write_text("a file in the place of the folder")
    printed = megaptm("train", *words, "train.profile={steps: [2, 2]}")
    assert "step 2/3  trace of steps 2 to 2: not written; rank 0: [Errno 17] File exists" in printed
    (event,) = traces(run)
    assert event["files"] == []
    assert event["problems"][0].startswith("rank 0: [Errno 17]")
    assert len(losses(run)) == 3


@pytest.mark.parametrize(
    ("device_name", "precision", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 4 * 989e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 4 * 312e12),
        ("NVIDIA H100 PCIe", "bf16", None),
        ("Tesla V100-SXM3-32GB", "bf16", None),
    ],
)
def test_peak_is_known_by_the_name_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, device_name: str, precision: str, expected: float | None
) -> None:
    """The PCIe card of the H100 has another peak, and the V100 has no bf16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device_name)
    config = load_config(
        TINY, ["run=run", "data.mix={corpus: 1}", "layout.data=4", "train.batch=32", f"train.precision={precision}"]
    )
    assert device_use.peak_flops(config) == expected


def test_memory_snapshot_is_written_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calls of torch's memory history are recorded; there is no GPU here."""
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: calls.append(options))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"snapshot"))
    monkeypatch.setattr(profiler, "all_gather_object", lambda value: [value])
    steps = profiler.StepProfiler(tmp_path, ProfileConfig(steps=[1, 1]), rank=0)
    with steps.profile_step(1):
        torch.ones(3).sum()
    assert steps.ends(1, stopping=False)
    (trace,) = steps.finish(1).ranks
    assert trace.files == ["profile/steps-1-1-rank-0.json.gz", "profile/steps-1-1-rank-0-memory.pickle"]
    assert (tmp_path / trace.files[1]).read_bytes() == b"snapshot"
    assert calls == [{"max_entries": 1_000_000, "stacks": "python"}, "synchronize", {"enabled": None}]
