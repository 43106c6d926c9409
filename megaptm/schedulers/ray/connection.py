"""Connection of this process to a Ray cluster: at an address, or started on this machine."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megaptm.credentials import brief_message
from megaptm.errors import UserError
from megaptm.python_path import named_folders
from megaptm.schedulers.ray.start import StartRetries

ANSWER_SECONDS = 15.0
CLIENT = "ray://"
"""URL scheme of addresses for Ray Client, which can do less than a process on a node of the cluster."""

SLOW_START_ERRORS = ("timed out during startup", "Failed to connect to GCS")
"""Ray's errors if one of its processes does not start in time."""


@contextmanager
def ray_connection(*, cpus: int | None = None) -> Iterator[None]:
    """Return a context in which this process is connected to Ray, as by `connect_to_ray`. A connection that exists
    before stays open."""
    ray = _import_ray()
    if ray.is_initialized():
        yield
        return
    connect_to_ray(None, cpus=cpus)
    try:
        yield
    finally:
        ray.shutdown()


def connect_to_ray(address: str | None, *, cpus: int | None = None) -> None:
    """Connect to the Ray cluster at `address` or RAY_ADDRESS. If neither is set, start a cluster here with `cpus` CPUs
    (default: all).

    A cluster that happens to run on this machine is used only if the address is `auto`. If no cluster answers,
    UserError is raised in bounded time.
    """
    ray, target = _import_ray(), address or os.environ.get("RAY_ADDRESS") or "local"
    if target == "local":
        _start_here(ray, cpus)
        return
    if target.startswith(("http://", "https://")):
        raise UserError(
            f"{target} is the address of a dashboard, which is for `ray job submit`: set HOST:PORT of the cluster's "
            "head node here, such as 10.0.0.1:6379."
        )
    _check_reachable(target)
    try:
        ray.init(address=target, job_config=None if target.startswith(CLIENT) else _job_config(ray), **_quiet_options())
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise _unreachable_error(target, error) from None


def _import_ray() -> Any:
    """Return the module `ray`, with usage reports off. Raise UserError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: `pip install 'megaptm[corpus]'`.") from None
    return ray


def _start_here(ray: Any, cpus: int | None) -> None:
    retries = StartRetries(alternative="; `megaptm corpus build` needs no Ray with workers=0")
    while True:
        try:
            with _on_loopback(), _without_hangup():
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    object_store_memory=128 << 20,  # holds only names, tables and log lines
                    include_dashboard=False,
                    job_config=_job_config(ray),
                    **_quiet_options(),
                )
            return
        except Exception as error:  # Ray raises the bare class
            if "AF_UNIX path length" in str(error):
                folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
                raise UserError(
                    f"Ray cannot start: the path of its temporary folder, {folder}, is too long for its sockets "
                    "(at most 107 bytes): set RAY_TMPDIR to a folder with a shorter path."
                ) from None
            if not any(message in str(error) for message in SLOW_START_ERRORS):
                raise
            ray.shutdown()
            retries.wait(brief_message(error))


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Ray's processes that start in this context listen only on 127.0.0.1. `ray start` starts clusters for other
    machines.

    Ray would replace 127.0.0.1 by the machine's address. It does not if its setting forbids clusters.
    """
    from ray._private import ray_constants

    variable = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    value_before, allowed_before = os.environ.get(variable), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[variable], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = allowed_before
        os.environ.pop(variable)
        if value_before is not None:
            os.environ[variable] = value_before


@contextmanager
def _without_hangup() -> Iterator[None]:
    """Make Ray's processes that start in this context ignore the loss of the terminal, because a run needs Ray to save
    after such a loss."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _SearchPath(list[str]):
    """Folders that Ray's workers search for modules. Ray tries to add the driver's working directory."""

    def extend(self, _: object) -> None:
        pass


def _job_config(ray: Any) -> Any:
    """Let Ray's workers import modules from the folders on this process's PYTHONPATH."""
    job = ray.job_config.JobConfig()
    job._py_driver_sys_path = _SearchPath(named_folders())
    return job


def _quiet_options() -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR}


def _check_reachable(address: str) -> None:
    """Check that a Ray cluster answers. Ray itself would try for minutes and then end this process."""
    host_and_port = address.removeprefix(CLIENT)
    if not host_and_port.rpartition(":")[2].isdigit():
        return  # `auto`: Ray finds the address
    for check in (_check_grpc,) if address.startswith(CLIENT) else (_check_grpc, _check_gcs):
        try:
            check(host_and_port)
        except Exception as error:
            raise _unreachable_error(address, error) from None


def _check_grpc(host_and_port: str) -> None:
    """Raise an error within seconds if nothing, or another service, listens at the address of the Ray cluster."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    import grpc

    options = [("grpc.enable_http_proxy", 0)]  # Ray does not use the proxy of HTTP_PROXY either
    with grpc.insecure_channel(host_and_port, options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            raise ConnectionError(f"no answer in {ANSWER_SECONDS:.0f} s") from None


def _check_gcs(host_and_port: str) -> None:
    """Raise an error within a minute if the service is not Ray's GCS, or if it rejects the token."""
    import ray._raylet

    raylet: Any = ray._raylet
    raylet.GcsClient(address=host_and_port)


def _unreachable_error(address: str, error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return UserError(f"no Ray cluster answers at {address} ({reason}): correct RAY_ADDRESS or --address, or unset it.")
