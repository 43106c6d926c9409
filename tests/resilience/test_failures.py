"""The root cause of a failure is found in the output of the processes."""

import signal

import pytest

from megaptm.resilience.failures import BUS_ERROR_CAUSE, ProcessExit, describe_failure, root_cause

# Output of NCCL's watchdog when it ends a process that waits for others, with some frames left out.
NCCL_ABORT = """\
step 7/100  loss 4.2
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: {reason}
Exception raised from run at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f5a9616c1b6 in /venv/torch/lib/libc10.so)
frame #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x890 (0x7f5a4441d7d0 in /venv/torch/lib/libtorch_cuda.so)
frame #3: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f5a4441e01d in /venv/torch/lib/libtorch_cuda.so)
frame #4: <unknown function> + 0xdc253 (0x7f5a968b0253 in /lib/x86_64-linux-gnu/libstdc++.so.6)
frame #5: <unknown function> + 0x94ac3 (0x7f5a97c32ac3 in /lib/x86_64-linux-gnu/libc.so.6)
frame #6: <unknown function> + 0x126850 (0x7f5a97cc4850 in /lib/x86_64-linux-gnu/libc.so.6)

"""
TIMEOUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=112, "
    "NumelOut=112, Timeout(ms)=1800000) ran for 1800011 milliseconds before timing out."
)
REMOTE_EXIT = (
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
ILLEGAL = "CUDA error: an illegal memory access was encountered"
UNHANDLED = "NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5"


def process_exit(tmp_path, rank, output, *, code=-signal.SIGABRT):
    log = tmp_path / f"rank-{rank}.log"
    log.write_text(output)
    return ProcessExit(rank=rank, code=code, log=log, log_start=0)


@pytest.mark.parametrize(
    ("reason", "lost"), [(TIMEOUT, True), (REMOTE_EXIT, True), (ILLEGAL, False), (UNHANDLED, False)]
)
def test_nccl_abort_is_a_lost_peer_unless_own_device_failed(tmp_path, reason, lost):
    end = process_exit(tmp_path, 0, NCCL_ABORT.format(reason=reason))
    assert end.failed_after_another_rank == lost
    assert end.last_error.startswith("terminate called")
    assert reason.splitlines()[0] in end.last_error


def test_root_cause_skips_nccl_aborts(tmp_path):
    aborted = process_exit(tmp_path, 0, NCCL_ABORT.format(reason=REMOTE_EXIT))
    failed = process_exit(
        tmp_path, 1, "Traceback (most recent call last):\n  ...\nValueError: my own mistake\n", code=1
    )
    assert root_cause([aborted, failed]) == failed


def test_bus_error_is_explained(tmp_path):
    end = process_exit(tmp_path, 1, "step 7/100  loss 4.2\n", code=-signal.SIGBUS)
    assert describe_failure(end) == f"rank 1 was killed by signal 7 (SIGBUS): {BUS_ERROR_CAUSE}"
