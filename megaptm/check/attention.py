"""Topic `attention` of `megaptm check`: kernels of the model's attention, and whether the configured kernel can be
used."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.check.finding import CheckInput, Finding
from megaptm.check.software import gpu_facts
from megaptm.plan.kernels import attention_kernels

TOPIC = "attention"


def check_attention(case: CheckInput) -> Iterator[Finding]:
    """Yield a finding for each kind of attention, on the machine's devices or those present here."""
    if case.config_errors:
        yield Finding(TOPIC, "unknown", "the attention kernels are unknown until the config is valid.")
        return
    if case.machine is None:
        device, where = "cuda" if gpu_facts()["gpus"] else "cpu", "here"
    else:  # a CPU's memory is the host's
        device, where = "cpu" if case.machine.host_gib is None else "cuda", f"on {case.machine.name}"
    for name, choice in attention_kernels(case.config, device):
        details = {"attention": name, "kernel": choice.kernel, "why": choice.why}
        yield Finding(TOPIC, "ok", f"{name}, {where}: {choice.kernel}, {choice.why}.", details)
