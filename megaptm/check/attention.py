"""Topic `attention`: kernels of the model's attention, and whether the configured kernel can be used."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.check.finding import Case, Finding
from megaptm.check.software import gpus
from megaptm.plan.kernels import attention_kernels

TOPIC = "attention"


def attention(case: Case) -> Iterator[Finding]:
    """Yield a finding for each kind of attention, on the machine's devices or those present here."""
    if case.mistakes:
        yield Finding(TOPIC, "unknown", "which kernels compute it is not known: the config must be right first.")
        return
    if case.machine is None:
        device, where = "cuda" if gpus()["gpus"] else "cpu", "here"
    else:  # a CPU's memory is the host's
        device, where = "cpu" if case.machine.host_gib is None else "cuda", f"on {case.machine.name}"
    for name, choice in attention_kernels(case.config, device):
        told = {"attention": name, "kernel": choice.kernel, "why": choice.why}
        yield Finding(TOPIC, "good", f"{name}, {where}: {choice.kernel}, {choice.why}.", told)
