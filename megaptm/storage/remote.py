"""Files on object stores, by fsspec. Each call makes one attempt; `retry` repeats it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megaptm.credentials import refuse_credentials
from megaptm.errors import UserError
from megaptm.storage.retry import RetryPolicy, with_retries

WEB_PROTOCOLS = ("http", "https")
PROTOCOLS = frozenset(
    (*WEB_PROTOCOLS, "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "hf", "hdfs", "webhdfs")
)
"""Allowed protocols of network stores. Other protocols of fsspec are rejected: they read local files, log in to other
systems or start programs, and an untrusted corpus or run could name them."""
NOT_MISSING_STATUSES = (401, 403, 408, 425, 429)
"""HTTP status codes below 500 that do not mean that the file is missing, but denied access or a temporary failure."""
CHUNK_BYTES = 16 << 20
"""Bytes per request to an object store, which are fetched again if the connection breaks."""


class RemoteFile:
    """File or folder on an object store, by its URL."""

    def __init__(self, url: str, retry: RetryPolicy):
        refuse_credentials(url, where="the URL of a file")
        self.url = url.rstrip("/")
        self.retry = retry

    def exists(self) -> bool:
        def call() -> bool:
            files = self._file_system()
            if self._protocol not in WEB_PROTOCOLS:
                return bool(files.exists(self.url))
            try:  # fsspec's `exists` also returns False if the server does not respond
                files.info(self.url)
            except FileNotFoundError as error:
                if (cause := cause_of_not_found(error)) is not error:
                    raise cause from None
                return False
            return True

        return bool(self._call_with_retries(call))

    def size(self) -> int:
        return int(self._call_with_retries(lambda: self._file_system().info(self.url, **self._fresh_options())["size"]))

    def read(self) -> bytes:
        """Return the content of this remote file in one read, for small files."""
        return self._call_with_retries(lambda: self._file_system().cat_file(self.url))

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the first `size` bytes of a remote file in chunks. A broken connection costs only one chunk."""
        for start in range(0, size, CHUNK_BYTES):
            yield self.read_range(start, min(size, start + CHUNK_BYTES))

    def read_range(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of the remote file."""
        return self._call_with_retries(lambda: self._read_bytes(start, stop))

    def write(self, path: Path) -> None:
        """Upload a local file to an object store. The remote file becomes visible when it is complete."""
        deadline = self.retry.deadline * (1 + path.stat().st_size / CHUNK_BYTES)
        self._call_with_retries(lambda: self._file_system().put_file(str(path), self.url), deadline)

    def remove(self) -> None:
        """Remove the remote file if it exists."""

        def call() -> None:
            files = self._file_system()
            if files.exists(self.url):
                files.rm_file(self.url)

        self._call_with_retries(call)

    def list_files(self) -> dict[str, int]:
        """List a remote folder: return name -> bytes of its files; empty if it does not exist."""

        def call() -> dict[str, int]:
            try:
                entries = self._file_system().ls(self.url, detail=True, **self._fresh_options())
            except FileNotFoundError:
                return {}
            return {
                entry["name"].rpartition("/")[2]: int(entry["size"]) for entry in entries if entry["type"] == "file"
            }

        return self._call_with_retries(call)

    def _read_bytes(self, start: int, stop: int) -> bytes:
        content = self._file_system().cat_file(self.url, start=start, end=stop)
        if len(content) != stop - start:
            raise EOFError(f"received {len(content):,} bytes, expected {stop - start:,}")
        return content

    def _fresh_options(self) -> dict[str, Any]:
        """Return the options of fsspec that bypass the cache of s3fs."""
        return {"refresh": True} if self._protocol == "s3" else {}

    @property
    def _protocol(self) -> str:
        return self.url.partition("://")[0]

    def _file_system(self) -> Any:
        """Return the fsspec file system of the URL. fsspec caches it per process; it is not stored here, because a
        forked process needs its own."""
        import fsspec

        if self._protocol not in PROTOCOLS:
            raise UserError(
                f"{self.url}: {self._protocol}:// is not a protocol that megaptm reads: use a local folder "
                f"or one of {', '.join(f'{name}://' for name in sorted(PROTOCOLS))}."
            )
        options: dict[str, Any] = {}
        if self._protocol == "s3":
            # One attempt each by botocore and s3fs, because their retries would multiply with ours to minutes.
            seconds = self.retry.deadline
            timeouts = {"connect_timeout": min(10.0, seconds), "read_timeout": seconds}
            # Contents are verified with our hashes, and some servers return the checksum of the full file for a range.
            checksums = {"response_checksum_validation": "when_required"}
            options["config_kwargs"] = {**timeouts, **checksums, "retries": {"total_max_attempts": 1}}
        try:
            files = fsspec.filesystem(self._protocol, use_listings_cache=False, **options)
        except ImportError as error:
            raise UserError(
                f"{self.url} needs a library that is not installed ({error}): run pip install 'megaptm[corpus]'."
            ) from None
        except (ValueError, TypeError) as error:  # TypeError for file systems that a URL alone does not specify
            raise UserError(f"{self.url} is not a valid URL ({error}): check the URL.") from None
        files.retries = 1
        return files

    def _call_with_retries(self, call: Any, deadline: float | None = None) -> Any:
        def attempt() -> Any:
            try:
                return call()
            except FileNotFoundError as error:
                raise cause_of_not_found(error) from None

        return with_retries(attempt, target=self.url, retry=self.retry, deadline=deadline)


def cause_of_not_found(error: FileNotFoundError) -> Exception:
    """Return the actual cause of a FileNotFoundError: fsspec also raises it if a web server fails, refuses or does not
    respond."""
    cause, status = error.__cause__, getattr(error.__cause__, "status", None)
    if isinstance(cause, Exception) and (status in NOT_MISSING_STATUSES or (status or 0) >= 500):
        return cause
    return cause if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError) else error
