"""A local S3 server, in a process of its own, that holds one corpus."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START = 30.0
"""Seconds within which the server must answer."""


@contextmanager
def serve(folder: Path, cache: str) -> Iterator[str]:
    """Yield the URL of a copy of `folder`; downloads go to `cache`, not to the user's cache."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": cache,
    }
    before = {name: os.environ.get(name) for name in here}
    os.environ.update(here)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port)
        yield _fill(folder)
    finally:
        server.kill()
        server.wait()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _wait(port: int) -> None:
    until = time.monotonic() + START
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _fill(folder: Path) -> str:
    import s3fs

    files = s3fs.S3FileSystem()
    files.call_s3("create_bucket", Bucket="benchmark")
    for file in folder.iterdir():
        if file.is_file():
            files.put_file(str(file), f"benchmark/corpus/{file.name}")
    return "s3://benchmark/corpus"
