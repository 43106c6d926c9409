"""Real Ray: the same bytes for any workers, errors that name their cause, dead workers that are replaced."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.corpus.build import build_corpus
from data_pipeline.corpus.workers import MIN_RAY_BYTES, InProcess, OnRay, open_workers
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
def test_worker_error_is_reported(on_ray, recipe, tmp_path):
    with pytest.raises(UserError, match=r"latin\.txt is not UTF-8: byte 0xe9 at offset 3"):
        build_corpus(replace(recipe, on_error="fail"), tmp_path / "corpus", workers=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_dead_worker_is_replaced(on_ray, tmp_path):
    assert list(on_ray.run(die_once, [str(tmp_path / "marker")])) == [(0, "done")]
