"""Files on object stores, by fsspec. Every call is one attempt; `retry` makes them again."""

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
"""Of stores on a network. fsspec knows others, which show files of this machine, log in elsewhere or start programs; a
corpus or a run from somebody else could name them."""
REFUSALS = (401, 403, 408, 425, 429)
"""Answers of a server of the web below 500 that do not mean that nothing is there, but: not for you, or later."""
CHUNK = 16 << 20
"""Bytes asked for at once: what is fetched again when a connection breaks."""


class Remote:
    """The file or folder at a URL."""

    def __init__(self, url: str, retry: RetryPolicy):
        refuse_credentials(url, where="the address of a file")
        self.url = url.rstrip("/")
        self.retry = retry

    def exists(self) -> bool:
        def call() -> bool:
            files = self._files()
            if self._protocol not in WEB_PROTOCOLS:
                return bool(files.exists(self.url))
            try:  # what it has for this says of a server that does not answer, too, that nothing is there
                files.info(self.url)
            except FileNotFoundError as error:
                if (behind := cause_of_not_found(error)) is not error:
                    raise behind from None
                return False
            return True

        return bool(self._call(call))

    def size(self) -> int:
        return int(self._call(lambda: self._files().info(self.url, **self._fresh())["size"]))

    def read(self) -> bytes:
        """The whole of a small file."""
        return self._call(lambda: self._files().cat_file(self.url))

    def chunks(self, size: int) -> Iterator[bytes]:
        """The first `size` bytes; a connection that breaks costs one chunk."""
        for start in range(0, size, CHUNK):
            yield self.range(start, min(size, start + CHUNK))

    def range(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop)."""
        return self._call(lambda: self._range(start, stop))

    def write(self, path: Path) -> None:
        """Put a local file here; it appears when all of it has arrived."""
        deadline = self.retry.deadline * (1 + path.stat().st_size / CHUNK)
        self._call(lambda: self._files().put_file(str(path), self.url), deadline)

    def remove(self) -> None:
        """Also where there is nothing."""

        def call() -> None:
            files = self._files()
            if files.exists(self.url):
                files.rm_file(self.url)

        self._call(call)

    def listed(self) -> dict[str, int]:
        """Name -> bytes of the files in this folder; none where there is no such folder."""

        def call() -> dict[str, int]:
            try:
                entries = self._files().ls(self.url, detail=True, **self._fresh())
            except FileNotFoundError:
                return {}
            return {
                entry["name"].rpartition("/")[2]: int(entry["size"]) for entry in entries if entry["type"] == "file"
            }

        return self._call(call)

    def _range(self, start: int, stop: int) -> bytes:
        content = self._files().cat_file(self.url, start=start, end=stop)
        if len(content) != stop - start:
            raise EOFError(f"{len(content):,} bytes came where {stop - start:,} were asked for")
        return content

    def _fresh(self) -> dict[str, Any]:
        """What makes a file system of object stores ask instead of remembering."""
        return {"refresh": True} if self._protocol == "s3" else {}

    @property
    def _protocol(self) -> str:
        return self.url.partition("://")[0]

    def _files(self) -> Any:
        """fsspec keeps one for each process; never held here, because a forked process must have its own."""
        import fsspec

        if self._protocol not in PROTOCOLS:
            raise UserError(
                f"{self.url}: {self._protocol}:// is not a protocol that megaptm reads: give a folder of this "
                f"machine, or one of {', '.join(f'{name}://' for name in sorted(PROTOCOLS))}."
            )
        options: dict[str, Any] = {}
        if self._protocol == "s3":
            # One attempt of botocore's and one of s3fs's: together with ours they would multiply to minutes.
            seconds = self.retry.deadline
            timeouts = {"connect_timeout": min(10.0, seconds), "read_timeout": seconds}
            # Contents are compared with hashes of ours; some servers answer a range with the checksum of the whole.
            checksums = {"response_checksum_validation": "when_required"}
            options["config_kwargs"] = {**timeouts, **checksums, "retries": {"total_max_attempts": 1}}
        try:
            files = fsspec.filesystem(self._protocol, use_listings_cache=False, **options)
        except ImportError as error:
            raise UserError(
                f"{self.url} needs a library that is not installed ({error}): pip install 'megaptm[corpus]'."
            ) from None
        except (ValueError, TypeError) as error:  # the second of file systems that an address alone does not name
            raise UserError(f"{self.url} is no address that can be read ({error}).") from None
        files.retries = 1
        return files

    def _call(self, call: Any, deadline: float | None = None) -> Any:
        def attempt() -> Any:
            try:
                return call()
            except FileNotFoundError as error:
                raise cause_of_not_found(error) from None

        return with_retries(attempt, what=self.url, retry=self.retry, deadline=deadline)


def cause_of_not_found(error: FileNotFoundError) -> Exception:
    """What is behind it: of a server of the web that does not answer, fails or refuses, fsspec says, too, that there is
    no such file."""
    cause, status = error.__cause__, getattr(error.__cause__, "status", None)
    if isinstance(cause, Exception) and (status in REFUSALS or (status or 0) >= 500):
        return cause
    return cause if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError) else error
