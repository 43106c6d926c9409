"""Proxy in front of a server that injects network faults into its responses."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal

Kind = Literal["reset", "error", "stall", "truncate", "corrupt"]


@dataclass
class Fault:
    """Fault of the next `times` requests whose "METHOD /path" matches."""

    kind: Kind
    match: str
    times: int
    seconds: float = 10.0
    """Duration of a stall."""


class Proxy:
    """Forwards requests to a local port. `faults` are applied in order; `down` refuses connections until `up`."""

    def __init__(self, target: int):
        self.target = target
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        """Requests so far, `GET /bucket/key`."""
        self.injected: list[Kind] = []
        """Faults so far."""
        self.is_down = False
        self._lock = threading.Lock()
        self.up()

    def inject(self, kind: Kind, match: str = ".*", times: int = 1, seconds: float = 10.0) -> None:
        self.faults.append(Fault(kind, match, times, seconds))

    def take(self, request: str) -> Fault | None:
        """Return the fault of a request, if any."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times and re.search(fault.match, request):
                    fault.times -= 1
                    self.injected.append(fault.kind)
                    return fault
        return None

    def up(self) -> None:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", getattr(self, "port", 0)), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.is_down = False
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        self.is_down = True
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: ClassVar[Any]

    def _forward(self) -> None:
        fault = self.proxy.take(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.proxy.is_down or (fault and fault.kind == "reset"):
            return self._reset()
        if fault and fault.kind == "stall":
            time.sleep(fault.seconds)
        if fault and fault.kind == "error":
            return self._answer(500, {"Content-Length": "0"}, b"")
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.target)
        upstream.request(
            self.command, self.path, body, dict(self.headers)
        )  # with Host, so that signatures remain valid
        reply = upstream.getresponse()
        content, headers = reply.read(), dict(reply.getheaders())
        upstream.close()
        if fault and fault.kind == "corrupt" and content:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if self.command != "HEAD":
            headers.pop("Transfer-Encoding", None)
            headers["Content-Length"] = str(len(content))
        if fault and fault.kind == "truncate":
            self._answer(reply.status, headers, content[: len(content) // 2])
            return self._reset()
        self._answer(reply.status, headers, content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):  # closed without sending: the client gets "connection reset"
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None: ...
