"""The same bits each time on GPUs, as a CPU gives them anyway: by kernels and collectives that add in one order."""

from __future__ import annotations

import os

import torch

from megaptm.errors import UserError

# https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
CUBLAS_WORKSPACES = (":4096:8", ":16:8")
# What switches add up comes in the order in which it arrives.
NCCL_WITHOUT_SWITCHES = "^NVLS,NVLSTree"


def use_deterministic_kernels() -> None:
    """For this process from now on; before anything touches a GPU.

    Raises `UserError` where the environment asks for something else.
    """
    workspace = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACES[0])
    if workspace not in CUBLAS_WORKSPACES:
        raise UserError(
            f"CUBLAS_WORKSPACE_CONFIG is {workspace}, with which train.deterministic cannot be: unset it, or set it to "
            f"{' or '.join(CUBLAS_WORKSPACES)}."
        )
    algorithms = os.environ.setdefault("NCCL_ALGO", NCCL_WITHOUT_SWITCHES)
    if "NVLS" in algorithms and not algorithms.startswith("^"):
        raise UserError(
            f"NCCL_ALGO is {algorithms}, with which train.deterministic cannot be, because switches add in any order: "
            f"unset it, or set it to {NCCL_WITHOUT_SWITCHES}."
        )
    # Attention's fused kernels go by this as well, and an operation that has no such kernel is an error.
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Fills new tensors with NaN, to find reads of what was never written: a pass over memory for each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
