"""Faults of this process's GPU as NVML reports them: XID errors, uncorrectable memory errors, throttling.

Needs the package nvidia-ml-py (module `pynvml`). Without it, or without a GPU, nothing is watched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from megaptm.node import node_name
from megaptm.resilience.events import GpuFaultEvent, record_events

POLL_SECONDS = 10.0
MAX_EVENTS = 1000
"""Maximum number of XID errors that are read in a poll."""
THROTTLED_POLLS = 3
"""Number of polls in a row in which a GPU is throttled before it is reported: short peaks are normal."""
THROTTLING = {
    0x08: "slowed down by its hardware",
    0x20: "slowed down by its driver because of heat",
    0x40: "slowed down by its hardware because of heat",
    0x80: "slowed down by an external power brake",
}
"""Reasons for low clocks that are faults, by NVML's bits. Other reasons are normal, such as the power cap."""
XIDS = {
    13: "graphics engine exception, mostly of the program",
    31: "page fault, mostly of the program",
    48: "uncorrectable memory error",
    63: "a memory row will be remapped",
    64: "a memory row cannot be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
}
"""Frequent XID errors by number, from NVIDIA's documentation."""


class GpuWatch:
    """Faults of one GPU since the last poll."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """`nvml`: the module `pynvml`. Raise its NVMLError if NVML does not know the GPU."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.index = int(nvml.nvmlDeviceGetIndex(self._handle))
        self._events = nvml.nvmlEventSetCreate()
        with contextlib.suppress(nvml.NVMLError):  # not on all GPUs; the counters below remain
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        self._num_errors = self._count_errors()
        self._is_remapped = self._needs_remapping()
        self._throttled_polls = 0
        self._known_xids = set[int]()

    def poll(self) -> Iterator[str]:
        """Yield all faults that are new, as sentences; each XID error once, because one can repeat every step."""
        new_xids = self._read_xids() - self._known_xids
        self._known_xids |= new_xids
        for xid in sorted(new_xids):
            yield f"XID {xid}" + (f": {XIDS[xid]}" if xid in XIDS else "")
        before, self._num_errors = self._num_errors, self._count_errors()
        if self._num_errors > before:
            yield f"{self._num_errors - before} uncorrectable memory errors (ECC)"
        was_remapped, self._is_remapped = self._is_remapped, self._needs_remapping()
        if self._is_remapped and not was_remapped:
            yield "a memory row must be remapped: reset the GPU"
        reasons = self._read_throttling()
        self._throttled_polls = self._throttled_polls + 1 if reasons else 0
        if self._throttled_polls == THROTTLED_POLLS:
            yield " and ".join(reasons)

    def _read_xids(self) -> set[int]:
        xids = set[int]()
        with contextlib.suppress(self._nvml.NVMLError):  # no further event
            for _ in range(MAX_EVENTS):
                xids.add(int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
        return xids

    def _count_errors(self) -> int:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):  # a GPU without ECC
            kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            return int(nvml.nvmlDeviceGetTotalEccErrors(self._handle, *kinds))
        return 0

    def _needs_remapping(self) -> bool:
        with contextlib.suppress(self._nvml.NVMLError):
            _, _, is_pending, has_failed = self._nvml.nvmlDeviceGetRemappedRows(self._handle)
            return bool(is_pending or has_failed)
        return False

    def _read_throttling(self) -> list[str]:
        with contextlib.suppress(self._nvml.NVMLError):
            bits = int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
            return [meaning for bit, meaning in THROTTLING.items() if bits & bit]
        return []


def watch_gpu(run: Path, rank: int) -> None:
    """Watch the GPU of this process in a thread, if NVML is installed and knows it."""
    if not torch.cuda.is_available():
        return
    try:
        import pynvml
    except ImportError:
        return
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    with contextlib.suppress(pynvml.NVMLError):
        watch = GpuWatch(pynvml, f"GPU-{uuid.removeprefix('GPU-')}")
        threading.Thread(target=_report_faults, args=(watch, run, rank), name="gpu-watch", daemon=True).start()


def _report_faults(watch: GpuWatch, run: Path, rank: int) -> None:
    while True:
        time.sleep(POLL_SECONDS)
        for problem in watch.poll():
            report_fault(run, rank, watch.index, problem)


def report_fault(run: Path, rank: int, gpu: int, problem: str) -> None:
    """Print and record a fault of a rank's GPU."""
    host = node_name()
    print(f"warning: GPU {gpu} of {host} (rank {rank}): {problem}.", file=sys.stderr, flush=True)
    record_events(run, GpuFaultEvent(rank=rank, gpu=gpu, host=host, problem=problem))
