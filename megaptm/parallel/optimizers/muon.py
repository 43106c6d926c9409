"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon): momentum, orthogonalized.

The weight matrices of layers move along the orthogonal factor of their momentum; AdamW updates all other parameters.
Each matrix is orthogonalized by one process of a stage (`MatrixExchange`).
"""

# M matrices of one shape, R rows and C columns

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from megaptm.parallel.optimizers.matrix_exchange import MatrixExchange
from megaptm.parallel.optimizers.part import TensorPart

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial, with a steep slope at 0: singular values end between 0.7 and 1.2."""


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of layers, AdamW for the rest, on any layout.

    Queries, keys and values that one matrix stores are orthogonalized separately.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        parts: Sequence[TensorPart],
        *,
        momentum: float,
        nesterov: bool,
        ns_steps: int,
        adjust_lr_fn: str,
        adamw_lr_ratio: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """`groups`: without tensors, which are set before the first step. All processes of a stage must build it."""
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self.momentum, self.nesterov, self.ns_steps = momentum, nesterov, ns_steps
        self.adjust_lr_fn, self.adamw_lr_ratio = adjust_lr_fn, adamw_lr_ratio
        matrices = [part for part in parts if part.placement.in_layer]
        self._matrix_masters = [part.master for part in matrices]
        self._rates = [_rate_factor(part.full_length, part.full_width, adjust_lr_fn) for part in matrices]
        self._exchange = MatrixExchange(matrices)
        self._adamw = torch.optim.AdamW([torch.zeros(1)], betas=betas, eps=eps, fused=True)
        self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update the weights. Gradients of matrices are overwritten."""
        held = [(index, master) for index, master in enumerate(self._matrix_masters) if master is not None]
        own_ids = {id(master) for _, master in held}
        group_of = {id(master): group for group in self.param_groups for master in group["params"]}
        self._step_adamw(own_ids)
        directions = self._update_momentum([master for _, master in held])
        updates = self._exchange.map(
            {index: direction for (index, _), direction in zip(held, directions, strict=True)},
            lambda matrices_MRC: orthogonalize(matrices_MRC, self.ns_steps),
        )
        held_masters = dict(held)
        for index, update in updates:
            master = held_masters[index]
            group = group_of[id(master)]
            master.mul_(1 - group["lr"] * group["weight_decay"])
            master.add_(update, alpha=-group["lr"] * self._rates[index])

    def _step_adamw(self, excluded: set[int]) -> None:
        [options] = self._adamw.param_groups[:1]
        self._adamw.param_groups = [
            {
                **options,
                "params": [master for master in group["params"] if id(master) not in excluded],
                "lr": group["lr"] * self.adamw_lr_ratio,
                "weight_decay": group["weight_decay"],
            }
            for group in self.param_groups
        ]
        self._adamw.step()

    def _update_momentum(self, masters: Sequence[Tensor]) -> Iterable[Tensor]:
        """Return the momentum of matrices after adding their gradients. With Nesterov's look-ahead, the result
        overwrites the gradients."""
        if not masters:
            return []
        gradients: list[Tensor] = [master.grad for master in masters]  # type: ignore[misc]
        means = []
        for master in masters:
            state = self.state[master]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(master)
            means.append(state["momentum_buffer"])
        torch._foreach_lerp_(means, gradients, 1 - self.momentum)
        if not self.nesterov:
            return means
        torch._foreach_lerp_(gradients, means, self.momentum)
        return gradients


def orthogonalize(matrices_MRC: Tensor, steps: int, eps: float = 1e-7) -> Tensor:
    """Return approximately the orthogonal factor U V^T of each matrix U S V^T, [M, R, C].

    Each step of the Newton-Schulz iteration is an odd polynomial of the singular values, computed by products alone.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices_MRC.shape[1] > matrices_MRC.shape[2]
    x_MRC = matrices_MRC.mT if is_tall else matrices_MRC
    x_MRC = x_MRC / x_MRC.flatten(1).norm(dim=1).clamp(min=eps)[:, None, None]
    for _ in range(steps):
        gram_MRR = x_MRC @ x_MRC.mT
        polynomial_MRR = torch.baddbmm(gram_MRR, gram_MRR, gram_MRR, beta=b, alpha=c)
        x_MRC = torch.baddbmm(x_MRC, polynomial_MRR, x_MRC, beta=a)
    return x_MRC.mT if is_tall else x_MRC


def _rate_factor(rows: int, columns: int, adjust_lr_fn: str) -> float:
    """Return the factor of the learning rate of a matrix [rows, columns], as torch.optim.Muon's `adjust_lr_fn`.

    match_rms_adamw: elements of an update have a root mean square of 0.2, as AdamW's usually (arXiv:2502.16982,
    section 2.2).
    """
    if adjust_lr_fn == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))
