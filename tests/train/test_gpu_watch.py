"""Faults of a GPU. NVML itself needs a GPU: a stand-in gives its answers."""

from types import SimpleNamespace

import pytest

from megaptm.report.marks import find_marks
from megaptm.resilience.events import read_events
from megaptm.train.gpu_watch import GpuWatch, report_fault


class NVMLError(Exception):
    """The error that `pynvml` raises for any code of NVML."""


class Nvml:
    """Stand-in for the module `pynvml`, with the names, arguments and results of nvidia-ml-py 13."""

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815  # its name in pynvml

    def __init__(self):
        self.xids, self.errors, self.rows, self.throttling = [], 0, (0, 0, 0, 0), 0

    def nvmlInit(self): ...  # noqa: N802

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return uuid

    def nvmlDeviceGetIndex(self, handle):  # noqa: N802
        return 3

    def nvmlEventSetCreate(self):  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle, kinds, events): ...  # noqa: N802

    def nvmlEventSetWait_v2(self, events, milliseconds):  # noqa: N802
        if not self.xids:
            raise NVMLError("Timeout")
        return SimpleNamespace(eventData=self.xids.pop())

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):  # noqa: N802
        if self.errors is None:
            raise NVMLError("Not Supported")
        return self.errors

    def nvmlDeviceGetRemappedRows(self, handle):  # noqa: N802
        return self.rows

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
        return self.throttling


@pytest.fixture
def nvml():
    return Nvml()


def poll(watch):
    return list(watch.poll())


def test_new_faults_are_reported_once(nvml):
    nvml.errors = 2
    watch = GpuWatch(nvml, "GPU-1")
    assert poll(watch) == []
    nvml.xids, nvml.errors, nvml.rows = [79, 79], 5, (0, 1, 1, 0)
    assert poll(watch) == [
        "XID 79: the GPU has fallen off the bus",
        "3 uncorrectable memory errors (ECC)",
        "a memory row must be remapped: reset the GPU",
    ]
    nvml.xids = [79]
    assert poll(watch) == []


def test_lasting_throttling_is_reported_once(nvml):
    watch = GpuWatch(nvml, "GPU-1")
    nvml.throttling = 0x4  # power cap: normal
    assert [poll(watch) for _ in range(4)] == [[], [], [], []]
    nvml.throttling = 0x4 | 0x40
    heat = ["slowed down by its hardware because of heat"]
    assert [poll(watch) for _ in range(4)] == [[], [], heat, []]


def test_gpu_without_ecc_is_watched(nvml):
    nvml.errors = None
    watch = GpuWatch(nvml, "GPU-1")
    nvml.xids = [1000]
    assert poll(watch) == ["XID 1000"]


def test_fault_is_an_event_with_host_and_gpu(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    report_fault(tmp_path, 11, 3, "XID 74: NVLink error")
    assert capfd.readouterr().err == "warning: GPU 3 of node7 (rank 11): XID 74: NVLink error.\n"
    [event] = read_events(tmp_path)
    assert (event["kind"], event["host"], event["gpu"], event["rank"]) == ("gpu-fault", "node7", 3, 11)
    [mark] = find_marks([event], [])
    assert mark.kind == "failure"
    assert "problem XID 74: NVLink error" in mark.text
