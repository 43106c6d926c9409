"""Layouts and ranks whose steps are counted."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.config import Layout, OptimizerConfig
from megaptm.config.schema import AdafactorConfig
from megaptm.distillation.spec import Distillation
from megaptm.families import CATALOGUE
from megaptm.spec import ModelSpec
from tests.families.groups import RECURRENT, VISION
from tests.layouts.cases import ADAM, tiny

HOOKS = ("logits", "embeddings", "hidden", "scores")


@dataclass(frozen=True)
class Case:
    family: str
    layout: Layout
    rank: int = 0
    optimizer: OptimizerConfig = ADAM
    taught: str = ""
    """`by a teacher` that reads the same batches, or `by kept logits`."""
    microbatches: int = 1
    documents: bool = True
    """Whether sequences hold several documents and padding."""

    @property
    def spec(self) -> ModelSpec:
        """Model with one layer per chunk, or two, with dropout."""
        return tiny(self.family, dropout=0.1, layers=max(2, self.layout.pipeline * self.layout.virtual))

    @property
    def distillation(self) -> Distillation | None:
        """Distillation from a teacher of the same family and size."""
        if not self.taught:
            return None
        cached, layers = self.taught == "by kept logits", dict.fromkeys(self.spec.family.stacks, (1,))
        return Distillation(
            teacher=self.spec,
            weights=dict.fromkeys(("logits",) if cached else HOOKS, 1.0),
            layers={name: tuple(range(self.spec.size_of(name).layers)) for name in layers},
            projection="none" if cached else "by-kind",
            cached=cached,
        )


DATA = Layout(data=4, microbatch=2, distributed_optimizer=True)
CONTEXT = Layout(data=2, context=2, microbatch=2, distributed_optimizer=True)
SHARDED = Layout(data=4, microbatch=2, full_sharding=True)
WHOLE = Layout(
    data=2, tensor=2, pipeline=2, virtual=2, sequence_parallel=True, distributed_optimizer=True, recompute="full"
)
LAST = WHOLE.processes - 2
SLICES = Layout(tensor=2, sequence_parallel=True, recompute="full")
BEGIN = ("electra", "deberta-v3", "t5", "clip", "xlnet")
END = ("electra", "deberta-v3", "albert", "t5", "led", "clip", "uniter", "unimo", "xlnet", "bigbird")
SLICED = ("longformer", "led", "reformer", "bigbird", "xlnet", "vit")
RULES = {
    "lamb": OptimizerConfig(name="lamb", lr=1e-3, clip=1.0),
    "adafactor": OptimizerConfig(name="adafactor", lr=1e-2, adafactor=AdafactorConfig(min_dim_size_to_factor=16)),
    "muon": OptimizerConfig(name="muon", lr=1e-3, clip=1.0),
    "adagrad": OptimizerConfig(name="adagrad", lr=1e-2),
    "off-loaded adamw": OptimizerConfig(lr=1e-3, offload=True),
}
CASES = {
    **{family: Case(family, DATA) for family in (*CATALOGUE, *RECURRENT, *VISION)},
    "gpt2": Case("gpt2", DATA, microbatches=2),
    "gpt2, full sharding": Case("gpt2", SHARDED, microbatches=2),
    **{f"{family}, whole sequences": Case(family, DATA, documents=False) for family in ("gpt2", "bert", "bart")},
    "gpt2, context ranks": Case("gpt2", CONTEXT),
    "gpt2, context ranks, whole sequences": Case("gpt2", CONTEXT, rank=1, documents=False),
    "rotation": Case("rope", DATA),
    "pattern": Case("custom-pattern", DATA),
    "contrast": Case("two-towers-contrast", DATA),
    "contrast, first stage": Case("two-towers-contrast", WHOLE, microbatches=2),
    "contrast, last stage": Case("two-towers-contrast", WHOLE, rank=LAST, microbatches=2),
    "last-stage": Case("gpt2", WHOLE, rank=LAST, microbatches=2),
    **{f"{family}, first stage": Case(family, WHOLE, microbatches=2) for family in BEGIN},
    **{f"{family}, last stage": Case(family, WHOLE, rank=LAST, microbatches=2) for family in END},
    **{f"{family}, tensor ranks": Case(family, SLICES) for family in SLICED},
    **{f"bert, {taught}": Case("bert", DATA, taught=taught) for taught in ("by a teacher", "by kept logits")},
    **{
        f"t5, {taught}, tensor ranks": Case("t5", SLICES, taught=taught)
        for taught in ("by a teacher", "by kept logits")
    },
    **{f"bert by {name}": Case("bert", DATA, optimizer=optimizer) for name, optimizer in RULES.items()},
}
OFTEN = {
    *("gpt2", "bert", "deberta-v3", "xlnet", "reformer", "elmo"),
    *("bert, by a teacher", "bert by adafactor", "bert by muon", "bert by off-loaded adamw", "gpt2, full sharding"),
    *("bart", *(f"{family}, whole sequences" for family in ("gpt2", "bert", "bart"))),
    *("gpt2, context ranks", "gpt2, context ranks, whole sequences"),
    *("clip, first stage", "electra, last stage", "longformer, tensor ranks"),
}
"""Cases of each test run, one of each kind. Drills count the others."""
