"""Random numbers of a region: a seed of them, and the same ones again; and of the host. No rank is known here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

Again = Callable[[], AbstractContextManager[None]]
"""Within it, what is drawn is what was drawn after it was made; afterwards, random numbers go on as before it."""


def seed_of_stream(device: torch.device) -> int:
    """A seed from the stream that the device draws from now, which moves on."""
    if device.type != "cuda":
        return int(torch.randint(1 << 62, (1,), device=device))
    # The host knows a GPU's stream, seed and place in it, and would have to wait for a number that is drawn there.
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    place = generator.get_offset()
    generator.set_offset(place + 4)
    digest = hashlib.blake2b(f"{generator.initial_seed()}:{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def sent(drawn: Tensor, device: torch.device) -> Tensor:
    """What the host drew, on the device. A GPU fetches it by itself: of pageable memory the host would wait until all
    that was launched before is done."""
    return (drawn.pin_memory() if device.type == "cuda" else drawn).to(device, non_blocking=True)


def remember_draws() -> Again:
    """From here on, on this process's device."""
    host = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    @contextmanager
    def again() -> Iterator[None]:
        with torch.random.fork_rng(devices=[] if on_gpu is None else [torch.cuda.current_device()]):
            torch.set_rng_state(host)
            if on_gpu is not None:
                torch.cuda.set_rng_state(on_gpu)
            yield

    return again
