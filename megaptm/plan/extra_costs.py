"""Costs that an extension of a run adds to a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaptm.plan.costs import OperationTime
    from megaptm.plan.machine import Machine
    from megaptm.plan.workload import Workload


class ExtraCosts(ABC):
    """Costs of a step beside those of the trained model. Base class.

    A module `costs.py` has `extra_costs`, a function that returns an instance for a config, or None.
    """

    name: str
    """Name of the part in plans."""

    @abstractmethod
    def bytes(self, work: Workload) -> float:
        """Return the bytes on each rank."""

    @abstractmethod
    def flops(self, work: Workload) -> int:
        """Return the FLOPs of a step on all devices."""

    @abstractmethod
    def seconds(self, machine: Machine, work: Workload) -> OperationTime:
        """Return the seconds of a step on the slowest rank."""

    @abstractmethod
    def summary(self, work: Workload) -> str:
        """Return a line for the head of a plan."""
