"""`python -m megaptm.check.speed_probe`: measured speed of this node's products, disk and links."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import click

from megaptm.check.node import nearest, own_name, say
from megaptm.errors import storage_errors_as_user_errors
from megaptm.run.rank import worker_environment

BLOCK_BYTES = 16 << 20
BLOCKS = 16
MEETING_MINUTES = 2.0


@click.command()
@click.option(
    "--place", required=True, type=click.Path(path_type=Path), help="Where checkpoints will be written."
)
@click.option("--precision", required=True, help="Number format of the run.")
def main(place: Path, precision: str) -> None:
    """Print each rate when it is measured, so that earlier rates are known if a later one hangs."""
    say("node", own_name())
    with storage_errors_as_user_errors(place):
        for name, rate in disk_rates(nearest(place)).items():
            say(name, rate)
    from megaptm.parallel import groups, probe

    say("products", probe.product_rates(precision))
    here = worker_environment()
    if here is None or here.world == 1:
        return
    groups.join(rank=here.rank, world=here.world, local_rank=0, timeout_minutes=MEETING_MINUTES)
    say("all_reduce", probe.all_reduce_rate())
    say("pairs", probe.pair_rates())
    groups.leave()


def disk_rates(folder: Path) -> dict[str, float]:
    """Return bytes per second of writing a file to disk and of reading it."""
    path, block = folder / f".megaptm-speed-{secrets.token_hex(8)}", os.urandom(BLOCK_BYTES)
    try:
        begin = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for _ in range(BLOCKS):
                file.write(block)
            os.fsync(file.fileno())
        written = time.perf_counter() - begin
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # cached pages would falsify the rate
            begin = time.perf_counter()
            while file.read(BLOCK_BYTES):
                pass
        read = time.perf_counter() - begin
    finally:
        path.unlink(missing_ok=True)
    return {"written": BLOCKS * BLOCK_BYTES / written, "read": BLOCKS * BLOCK_BYTES / read}


if __name__ == "__main__":
    main()
