"""Random numbers of layers: seeds from the device's generator, repetition of dropout masks, transfer of host
samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

RngReplay = Callable[[], AbstractContextManager[None]]
"""Context that restores the random generator's state at its creation; afterwards the previous state continues."""


def next_seed(device: torch.device) -> int:
    """Return a random seed from the device's generator, which advances."""
    if device.type != "cuda":
        return int(torch.randint(1 << 62, (1,), device=device))
    # Sampling on a GPU would make the host wait. The host knows the seed and offset of the GPU's generator.
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    digest = hashlib.blake2b(f"{generator.initial_seed()}:{offset}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def copy_to_device(sampled: Tensor, device: torch.device) -> Tensor:
    """Copy random samples of the host to the device without blocking. They are in pinned memory: a copy from pageable
    memory would wait for all launched kernels."""
    return (sampled.pin_memory() if device.type == "cuda" else sampled).to(device, non_blocking=True)


def save_rng_state() -> RngReplay:
    """Return a context that repeats the random numbers from this point, on this process's device."""
    host = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    @contextmanager
    def repeat_random_numbers() -> Iterator[None]:
        with torch.random.fork_rng(devices=[] if on_gpu is None else [torch.cuda.current_device()]):
            torch.set_rng_state(host)
            if on_gpu is not None:
                torch.cuda.set_rng_state(on_gpu)
            yield

    return repeat_random_numbers
