"""Update rules: what moves the weights, on any layout, in float32.

megatron-core wraps the rule: it keeps the float32 copies where the model runs in bfloat16, and divides them over data
ranks where the layout says so. A rule that looks at a tensor as a whole sums over the ranks that hold parts of it.
"""

from megaptm.parallel.optimizers.build import Optimizer, build_optimizer
from megaptm.parallel.optimizers.part import TensorPart
from megaptm.parallel.optimizers.rules import RULES, StateTensor, set_steps
from megaptm.parallel.optimizers.update import set_rates, update

__all__ = ["RULES", "Optimizer", "StateTensor", "TensorPart", "build_optimizer", "set_rates", "set_steps", "update"]
