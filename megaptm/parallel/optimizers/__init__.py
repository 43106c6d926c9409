"""Optimizers in float32, on any layout.

megatron-core wraps the update rule: it holds float32 copies of the weights if the model runs in bfloat16, and divides
them over data ranks with `distributed_optimizer`. Rules that need full tensors sum over the ranks that hold parts of
them.
"""

from megaptm.parallel.optimizers.build import build_optimizer
from megaptm.parallel.optimizers.optimizer import Optimizer
from megaptm.parallel.optimizers.part import TensorPart
from megaptm.parallel.optimizers.rules import EMA, StateTensor, set_steps, state_tensors
from megaptm.parallel.optimizers.sharded import ShardedOptimizer

__all__ = [
    "EMA",
    "Optimizer",
    "ShardedOptimizer",
    "StateTensor",
    "TensorPart",
    "build_optimizer",
    "set_steps",
    "state_tensors",
]
