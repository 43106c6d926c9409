"""AdamW whose moments are in host memory between updates.

The device holds the moments of the tensors that it updates and of the next batch of them, which are copied meanwhile.
ZeRO-Offload (arXiv:2101.06840) updates on the host instead, which is slower unless the link to the host is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from megaptm.parallel.optimizers.part import update_batches

MOMENTS = ("exp_avg", "exp_avg_sq")


class OffloadedAdamW(torch.optim.Optimizer):
    """AdamW with moments in host memory; updates are those of torch's AdamW, bit for bit."""

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "eps": eps})
        self._adamw = torch.optim.AdamW([torch.zeros(1)], betas=betas, eps=eps, fused=True)
        [self._options] = self._adamw.param_groups
        self._copies = torch.cuda.Stream() if torch.cuda.is_available() else None

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update the weights batch by batch, and copy the moments to the host."""
        held = [(group, master) for group in self.param_groups for master in group["params"]]
        batches = [[held[index] for index in batch] for batch in update_batches([master.numel() for _, master in held])]
        following = self._load(batches[0]) if batches else {}
        for number, batch in enumerate(batches):
            loaded = following
            if self._copies is not None:
                torch.cuda.current_stream().wait_stream(self._copies)
            if number + 1 < len(batches):
                following = self._load(batches[number + 1])
            self._update(batch, loaded)
            self._store(loaded)

    def synchronize(self) -> None:
        """Wait until the moments are on the host."""
        if self._copies is not None:
            self._copies.synchronize()

    def _load(self, batch: Sequence[tuple[dict[str, Any], Tensor]]) -> dict[Tensor, dict[str, Tensor]]:
        """Return copies on the device of the state of a batch of tensors."""
        loaded = {}
        with torch.cuda.stream(self._copies):
            for _, master in batch:
                moments = [name for name in MOMENTS if name in self.state[master]]
                loaded[master] = {
                    name: self.state[master][name].to(master.device, non_blocking=True) for name in moments
                }
        return loaded

    def _update(self, batch: Sequence[tuple[dict[str, Any], Tensor]], loaded: dict[Tensor, dict[str, Tensor]]) -> None:
        for master, state in loaded.items():
            if state:
                state["step"] = self.state[master]["step"]
        self._adamw.state.clear()
        self._adamw.state.update(loaded)
        groups = {id(group): group for group, _ in batch}
        self._adamw.param_groups = [
            {
                **self._options,
                **{name: group[name] for name in ("lr", "weight_decay", "eps")},
                "params": [master for owner, master in batch if owner is group],
            }
            for group in groups.values()
        ]
        self._adamw.step()

    def _store(self, loaded: dict[Tensor, dict[str, Tensor]]) -> None:
        """Copy the moments of updated tensors to host memory, which is allocated in the first step."""
        self._adamw.state.clear()
        if self._copies is None:
            for master, state in loaded.items():
                self.state[master].update(state)
            return
        computing = torch.cuda.current_stream()
        self._copies.wait_stream(computing)
        with torch.cuda.stream(self._copies):
            for master, state in loaded.items():
                own = self.state[master]
                for name in (name for name in MOMENTS if name in state):
                    if name not in own:
                        own["step"] = state["step"]
                        own[name] = torch.empty_like(state[name], device="cpu", pin_memory=True)
                    own[name].copy_(state[name], non_blocking=True)
                    # Their memory is reused only after both streams are done with it.
                    state[name].record_stream(computing)
                    state[name].record_stream(self._copies)
