"""Real Ray: the same bytes for any workers, errors that name their cause, dead workers that are replaced."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.clean.quality_classifier import QualityClassifier
from data_pipeline.corpus.build import build_corpus
from data_pipeline.corpus.workers import MIN_RAY_BYTES, InProcess, OnRay, open_workers
from data_pipeline.recipe import read_recipe
from megaptm.errors import UserError
from tests.data_pipeline.corpus.test_build import files_of


def test_small_input_runs_in_process():
    with open_workers(None, MIN_RAY_BYTES - 1) as workers:
        assert isinstance(workers, InProcess)
    with open_workers(0, 100 * MIN_RAY_BYTES) as workers:
        assert isinstance(workers, InProcess)


def test_unreachable_ray_is_rejected(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # no ephemeral port is below 1024
    with pytest.raises(UserError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "), open_workers(2, MIN_RAY_BYTES):
        pass


def test_ray_start_timeout_is_reported(monkeypatch):
    import ray

    starts = []

    def too_slow(**settings):
        starts.append(settings)
        raise Exception("The current node timed out during startup.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", too_slow)
    monkeypatch.setenv("MEGAPTM_RAY_START_SECONDS", "0")
    with (
        pytest.raises(UserError, match=r"Ray did not start on node .* 1 attempt.*workers=0"),
        open_workers(2, MIN_RAY_BYTES),
    ):
        pass
    assert len(starts) == 1


@pytest.fixture(scope="module")
def on_ray() -> Iterator[OnRay]:
    """One Ray for the module: `open_workers` finds it running and does not stop it."""
    with open_workers(4, MIN_RAY_BYTES) as workers:
        assert isinstance(workers, OnRay)
        yield workers


def square(number: int) -> int:
    return number * number


def die_once(marker: str) -> str:
    if not os.path.exists(marker):
        Path(marker).touch()
        os._exit(1)
    return "done"


def die(number: int) -> int:
    os._exit(1)


@pytest.mark.real
def test_job_that_kills_workers_is_reported(on_ray):
    with pytest.raises(UserError, match=r"the worker of a Ray job was lost 4 times \(.+\): check that its machine"):
        dict(on_ray.run(die, [1]))


@pytest.mark.real
def test_ray_returns_all_results(on_ray):
    assert dict(on_ray.run(square, list(range(20)))) == {number: number * number for number in range(20)}


@pytest.mark.real
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_corpus_does_not_depend_on_workers(workers, on_ray, recipe, tmp_path):
    alone = build_corpus(recipe, tmp_path / "alone", workers=0)
    shared = build_corpus(recipe, tmp_path / "shared", workers=workers)
    assert (alone.workers, shared.workers) == (0, workers)
    assert files_of(tmp_path / "shared") == files_of(tmp_path / "alone")
    assert len(files_of(tmp_path / "shared")) > 8


@pytest.mark.real
def test_groups_and_copies_do_not_depend_on_workers(on_ray, text, tmp_path):
    """Scores, groups, cluster sizes and repeated documents are the same on Ray."""
    weights = np.random.default_rng(0).integers(-(1 << 14), 1 << 14, 1 << 12) / np.float32(1 << 14)
    QualityClassifier(weights.astype(np.float32), 0.0, 2, {}).save(str(tmp_path / "q.quality"))
    code = f"{{path: '{text}/*.py', documents: blank-line, domain: code}}"
    settings = [
        f"sources=[{code}, {{path: '{text}/*.jsonl', domain: web}}]",
        f"steps=[normalize, drop-short, score-quality: {{model: '{tmp_path}/q.quality'}}]",
        "groups={quality: [0, 0.45, 0.55, 1], shares: [0.5, 1, 1], domain: domain}",
        "deduplicate={near: true, cluster_sizes: true, repeat: {2: 3}}",
        *("tokenizer.vocabulary=500", "shard_bytes=16384", "validation=0.1"),
    ]
    recipe = read_recipe([], settings)
    for workers in (0, 3):
        report = build_corpus(recipe, tmp_path / str(workers), workers=workers)
        assert len([size for size in report.groups.values() if size.documents]) > 3
        assert len(report.clusters) > 1
    assert files_of(tmp_path / "0") == files_of(tmp_path / "3")


@pytest.mark.real
def test_worker_error_is_reported(on_ray, recipe, tmp_path):
    with pytest.raises(UserError, match=r"latin\.txt is not UTF-8: byte 0xe9 at offset 3"):
        build_corpus(replace(recipe, on_error="fail"), tmp_path / "corpus", workers=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_dead_worker_is_replaced(on_ray, tmp_path):
    assert list(on_ray.run(die_once, [str(tmp_path / "marker")])) == [(0, "done")]
