"""`python -m megaptm.check.speed_probe`: measured speed of this node's products, disk and links."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import click

from megaptm.check.node import nearest_folder, node_name, print_fact
from megaptm.errors import storage_errors_as_user_errors
from megaptm.run.rank import worker_environment

BLOCK_BYTES = 16 << 20
BLOCKS = 16
JOIN_MINUTES = 2.0


@click.command()
@click.option("--folder", required=True, type=click.Path(path_type=Path), help="Folder for checkpoints.")
@click.option("--precision", required=True, help="Number format of the run.")
def main(folder: Path, precision: str) -> None:
    """Print each rate when it is measured, so that earlier rates are known if a later one hangs."""
    print_fact("node", node_name())
    with storage_errors_as_user_errors(folder):
        for name, rate in disk_rates(nearest_folder(folder)).items():
            print_fact(name, rate)
    from megaptm.parallel import groups, probe

    print_fact("products", probe.product_rates(precision))
    environment = worker_environment()
    if environment is None or environment.world == 1:
        return
    groups.join(rank=environment.rank, world=environment.world, local_rank=0, timeout_minutes=JOIN_MINUTES)
    print_fact("pairs", probe.pair_rates())
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
