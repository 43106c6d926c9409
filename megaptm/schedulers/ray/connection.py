"""Connects this process to a Ray cluster: one that is named, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megaptm.credentials import in_brief
from megaptm.errors import UserError
from megaptm.python_path import named_folders
from megaptm.schedulers.ray.start import Attempts

ANSWER_SECONDS = 15.0
CLIENT = "ray://"
"""Begins the address of Ray's client, which sees less of a cluster than a process on one of its nodes."""

TOO_SLOW = ("timed out during startup", "Failed to connect to GCS")
"""What Ray says when a part of it was not there in time."""


@contextmanager
def connected(*, cpus: int | None = None) -> Iterator[None]:
    """Connected as by `connect` while it is entered; a process that already is stays so."""
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    connect(None, cpus=cpus)
    try:
        yield
    finally:
        ray.shutdown()


def connect(address: str | None, *, cpus: int | None = None) -> None:
    """Join the cluster at `address`, or at RAY_ADDRESS; absent: start one here, of so many CPUs, or all there are.

    A Ray that merely happens to run on this machine is left alone, unless the address is `auto`. A `UserError` in
    bounded time where no cluster answers.
    """
    ray, wanted = _ray(), address or os.environ.get("RAY_ADDRESS") or "local"
    if wanted == "local":
        _start_here(ray, cpus)
        return
    if wanted.startswith(("http://", "https://")):
        raise UserError(
            f"{wanted} is the address of a dashboard, which `ray job submit` takes: give HOST:PORT of the cluster's "
            "head here, as 10.0.0.1:6379."
        )
    _check_answers(wanted)
    try:
        ray.init(address=wanted, job_config=None if wanted.startswith(CLIENT) else _job_config(ray), **_quiet())
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise _unreachable(wanted, error) from None


def _ray() -> Any:
    """The module, which must not report to its makers; a `UserError` where it is not."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed, and this needs it: `pip install 'megaptm[corpus]'`.") from None
    return ray


def _start_here(ray: Any, cpus: int | None) -> None:
    attempts = Attempts(instead="; `megaptm corpus build` does without Ray by workers=0")
    while True:
        try:
            with _on_loopback(), _without_hangup():
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    object_store_memory=128 << 20,  # what goes through it are names, tables and lines of logs
                    include_dashboard=False,
                    job_config=_job_config(ray),
                    **_quiet(),
                )
            return
        except Exception as error:  # Ray raises the bare class
            if "AF_UNIX path length" in str(error):
                folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
                raise UserError(
                    f"Ray cannot start: the path of its temporary folder, {folder}, is too long for its sockets, "
                    "whose paths have at most 107 bytes: set RAY_TMPDIR to a folder with a shorter path."
                ) from None
            if not any(words in str(error) for words in TOO_SLOW):
                raise
            ray.shutdown()
            attempts.again(in_brief(error))


@contextmanager
def _on_loopback() -> Iterator[None]:
    """What Ray starts meanwhile listens on 127.0.0.1 alone; who wants others to reach it starts it by `ray start`.

    Ray puts the machine's own address in the place of a 127.0.0.1 that it is given, unless it may form no cluster.
    """
    from ray._private import ray_constants

    variable = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    given, allowed = os.environ.get(variable), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[variable], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = allowed
        os.environ.pop(variable)
        if given is not None:
            os.environ[variable] = given


@contextmanager
def _without_hangup() -> Iterator[None]:
    """What Ray starts meanwhile does not hear that the terminal is lost: it serves whoever saves because of that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _SearchPath(list[str]):
    """Folders that Ray's workers search for modules; Ray adds the driver's working directory to them."""

    def extend(self, _: object) -> None:
        pass


def _job_config(ray: Any) -> Any:
    """Let workers import modules from where this process was told to: the folders on its PYTHONPATH."""
    job = ray.job_config.JobConfig()
    job._py_driver_sys_path = _SearchPath(named_folders())
    return job


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR}


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes, and then end this process, before it says that nobody is there."""
    place = address.removeprefix(CLIENT)
    if not place.rpartition(":")[2].isdigit():
        return  # `auto`: Ray looks for itself
    for answers in (_speaks_grpc,) if address.startswith(CLIENT) else (_speaks_grpc, _is_rays):
        try:
            answers(place)
        except Exception as error:
            raise _unreachable(address, error) from None


def _speaks_grpc(place: str) -> None:
    """Said in seconds where nobody listens, or another service does."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    import grpc

    with grpc.insecure_channel(place) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            raise ConnectionError(f"nothing in {ANSWER_SECONDS:.0f} s") from None


def _is_rays(place: str) -> None:
    """Raises within a minute where it is not, or where the token is not the cluster's."""
    import ray._raylet

    raylet: Any = ray._raylet
    raylet.GcsClient(address=place)


def _unreachable(address: str, error: Exception) -> UserError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return UserError(f"no Ray cluster answers at {address} ({said}): correct RAY_ADDRESS or --address, or unset it.")
