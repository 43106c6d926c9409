"""Costs that an extension, such as distillation, adds to a training step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaptm.plan.costs import OperationTime
    from megaptm.plan.machine import Machine
    from megaptm.plan.workload import Workload


class ExtraCosts(ABC):
    """Costs that an extension adds to a step, besides those of the trained model. Base class."""

    name: str
    """Name of the extension's part in plans."""

    @abstractmethod
    def bytes(self, work: Workload) -> float:
        """Return the bytes that the extension takes on each rank."""

    @abstractmethod
    def flops(self, work: Workload) -> int:
        """Return the FLOPs that the extension adds to a step, on all devices."""

    @abstractmethod
    def seconds(self, machine: Machine, work: Workload) -> OperationTime:
        """Return the seconds that the extension adds to a step, on the slowest rank."""

    @abstractmethod
    def summary(self, work: Workload) -> str:
        """Return the extension's line for the summary at the top of a plan."""
