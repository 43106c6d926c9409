"""Rules of muP (`model.mup_base_width`): models and update rules for which it is defined."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.schema import Config
from megaptm.models.head_costs import head_costs, projected_norms
from megaptm.spec import ModelSpec

UPDATE_RULES = ("adamw", "stable-adamw")


def mup_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield an error for each part of the config to which muP does not apply."""
    base = spec.mup_base_width
    if base is None:
        return
    if config.optimizer.name not in UPDATE_RULES:
        yield (
            f"model.mup_base_width ({base}) scales the learning rates of adamw and stable-adamw, not of optimizer.name "
            f"{config.optimizer.name}: choose one of them, or remove it."
        )
    for reason in _model_reasons(spec):
        yield f"model.mup_base_width ({base}) is not defined for {spec.name}, {reason}: remove it."


def _model_reasons(spec: ModelSpec) -> Iterator[str]:
    """Yield the reasons for which muP is not defined for a model."""
    family, heads = spec.family, head_costs(spec).values()
    if family.layer is not None or any(block.residual.kind != "sum" for block in family.stacks.values()):
        yield "whose layers are of another kind"
    elif family.embedding.scale != "none":
        yield "which multiplies embeddings by the square root of the width"
    elif not family.init.uses_std and family.init.rule not in ("t5", "fan-in"):
        yield "whose initial values have a rule of their own"
    elif not any(head.projects for head in heads):
        yield "which does not predict tokens"
    elif None in projected_norms(spec):
        yield "which has no norm between its last layer and the vocabulary"
    elif any(block.norm.kind in ("layer-fixed", "rms-unit-offset") for block in family.stacks.values()):
        yield "whose norms have no weight, or 1 plus a weight"
    elif projected_norms(spec) & {f"{head.stack}.final" for head in heads if not head.projects}:
        yield "in which heads of several kinds read one norm"
