"""Bitwise reproducible results on GPUs: kernels and collectives with a fixed order of addition. CPUs have it anyway."""

from __future__ import annotations

import os

import torch

from megaptm.errors import UserError

# https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
CUBLAS_WORKSPACES = (":4096:8", ":16:8")
# Switches add values in the order of their arrival.
NCCL_WITHOUT_SWITCHES = "^NVLS,NVLSTree"


def use_deterministic_kernels() -> None:
    """Use deterministic GPU kernels and collectives in this process from now on. Must be called before any use of a
    GPU.

    Raise UserError if environment variables contradict it.
    """
    workspace = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACES[0])
    if workspace not in CUBLAS_WORKSPACES:
        raise UserError(
            f"CUBLAS_WORKSPACE_CONFIG is {workspace}, which train.deterministic does not allow: unset it, or set it to "
            f"{' or '.join(CUBLAS_WORKSPACES)}."
        )
    algorithms = os.environ.setdefault("NCCL_ALGO", NCCL_WITHOUT_SWITCHES)
    if "NVLS" in algorithms and not algorithms.startswith("^"):
        raise UserError(
            f"NCCL_ALGO is {algorithms}, which train.deterministic does not allow, because NVLink switches sum "
            f"in a random order: unset it, or set it to {NCCL_WITHOUT_SWITCHES}."
        )
    # Fused attention kernels follow this setting, too. An operation without a deterministic kernel raises an error.
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Would fill new tensors with NaN, to find reads of uninitialized memory: one pass over memory each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
