"""S3 server in its own process, and a fault-injecting proxy in front of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storage.faults import Proxy

BUCKET = "corpora"


def free_port() -> int:
    """Return a free port below 32768, where Linux starts to assign ports of outgoing connections."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the S3 server did not start")


@contextmanager
def s3_server() -> Iterator[Proxy]:
    """Start a server with one bucket. This process and its children reach it through the proxy."""
    port = free_port()
    program = Path(sys.executable).with_name("moto_server")
    server = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    before = dict(os.environ)
    try:
        _wait(port, server)
        proxy = Proxy(port)
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{proxy.port}",
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="testtest",
            AWS_DEFAULT_REGION="us-east-1",
            AWS_EC2_METADATA_DISABLED="true",
        )
        import fsspec

        fsspec.filesystem("s3", skip_instance_cache=True).call_s3("create_bucket", Bucket=BUCKET)
        yield proxy
        proxy.down()
    finally:
        server.terminate()
        server.wait()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def s3() -> Iterator[Proxy]:
    """Running server with one bucket (`s3_server`)."""
    pytest.importorskip("moto")
    with s3_server() as proxy:
        yield proxy


@pytest.fixture
def faults(s3: Proxy) -> Iterator[Proxy]:
    """Proxy without the faults of the previous test."""
    s3.faults.clear()
    s3.requests.clear()
    s3.injected.clear()
    yield s3
    s3.faults.clear()
    if s3.is_down:
        s3.up()
