"""Training without torch's compiler, which the optimizers of torch import. Ranks of `run_ranks` have imported it."""

import subprocess
import sys

import torch

from megaptm.config import Layout
from megaptm.parallel.optimizers.eager import without_compiler
from tests import ROOT
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, micro_batches, tiny
from tests.ranks import run_ranks

RANK = """
import sys, tempfile
from megaptm.parallel.groups import join_process_group
from tests.parallel.test_without_compiler import compile_while_optimizing, train

with tempfile.NamedTemporaryFile() as file:
    join_process_group(rank=0, world=1, local_rank=0, init_method=f"file://{file.name}")
    print(train())
print(sorted({"torch._dynamo", "sympy", "wandb", "tensorboard", "setuptools"} & sys.modules.keys()))
print(compile_while_optimizing())
"""


def train() -> list[float]:
    """Return losses of steps with AdamW."""
    torch.set_num_threads(1)
    engine = filled_engine(tiny("gpt2"), Layout(microbatch=4), ADAM, losses={"lm": 1.0}, seed=1)
    batches = micro_batches(batch("gpt2", 0), Layout(microbatch=4), engine.ranks.data)
    return [engine.train_step(batches, step=step, lr=1e-3).loss for step in range(3)]


def compile_while_optimizing() -> list[str]:
    """Return the names of the operations that the compiler captures in an optimizer that uses it."""
    names: list[str] = []

    def capture(graph: torch.fx.GraphModule, inputs: object) -> object:
        names.extend(node.name for node in graph.graph.nodes if node.op == "call_function")
        return graph

    with without_compiler():
        torch.compile(torch.sin, backend=capture)(torch.zeros(1))
    return names


def test_rank_trains_the_same_without_importing_the_compiler():
    """megaptm.parallel also hides what megatron-core imports and nothing uses: loggers, and tensors with a placement,
    which import SymPy. megaptm.track imports the loggers of a run, in one rank."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", RANK], cwd=ROOT, capture_output=True, text=True)
    losses, imported, captured = done.stdout.splitlines() or ["", "", done.stderr]
    assert losses == str(run_ranks(1, train)[0])
    assert imported == "[]"
    assert captured == "['sin']"
