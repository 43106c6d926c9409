"""Arguments with which processes join the world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from megaptm.parallel.groups import join_process_group


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of `init_process_group`, which is not called."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **options: arguments.update(options, backend=backend)
    )
    return arguments


@pytest.mark.parametrize(("gpus", "local_rank", "index"), [(8, 3, 3), (1, 3, 0)])
def test_a_rank_names_its_gpu_when_it_joins(
    joined: dict[str, Any], monkeypatch: pytest.MonkeyPatch, gpus: int, local_rank: int, index: int
) -> None:
    """NCCL then connects at once. A process that sees one GPU has index 0, whatever its local rank."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    join_process_group(rank=11, world=16, local_rank=local_rank)
    assert joined["backend"] == "nccl"
    assert joined["device_id"] == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)]


def test_a_rank_without_gpu_names_no_device(joined: dict[str, Any]) -> None:
    join_process_group(rank=0, world=1, local_rank=0)
    assert joined["backend"] == "gloo"
    assert joined["device_id"] is None
