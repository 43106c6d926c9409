"""Hugging Face's UNITER (arXiv:1909.11740): `BertForPreTraining`, from which it is initialized."""

from dataclasses import replace
from typing import Any

from megaptm.errors import UserError
from megaptm.families.bert.huggingface import BERT, MASKED, encoder_rules
from megaptm.families.uniter.costs import detector_sizes
from megaptm.hub.counterpart import ImportOption
from megaptm.hub.imported_weights import ImportedModel
from megaptm.hub.tensor_rules import TensorRule, weight_and_bias
from megaptm.objectives import build_objective
from megaptm.objectives.mixture_config import mixture_config
from megaptm.objectives.mixtures import NamedMixture

REGION_HEADS = (
    *weight_and_bias("head.mrfr.transform"),
    *weight_and_bias("head.mrfr.norm"),
    TensorRule("head.mrfr.bias", ()),
    *weight_and_bias("head.mrc-kl.transform"),
    *weight_and_bias("head.mrc-kl.norm"),
    *weight_and_bias("head.mrc-kl.classify"),
)
"""Rules of heads that predict masked regions. Neither BERT nor RoBERTa has them, so they are initialized, like
everything that reads regions."""


def _complete_config(model: ImportedModel, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a run's config with positions of regions, and the objective's options for the detector."""
    mixture = build_objective(model.spec.family.objectives[0])
    assert isinstance(mixture, NamedMixture)
    # Regions follow the text. A text of a text-only task may span several documents.
    sequence = values["data"]["sequence"] + mixture.batch_spec(4096, False).num_appended
    values = values | {"data": values["data"] | {"sequence": sequence, "document_mask": False}}
    features, classes = detector_sizes(model.spec)
    # The objective's name alone stands for the papers' detector.
    if (written := mixture_config(mixture, features=features, classes=classes)) != mixture_config(mixture):
        values["objective"] = written
    return values


def _read_detector(text: str) -> tuple[int, int]:
    numbers = [number.strip() for number in text.strip("[] ").split(",")]
    are_valid = all(number.isascii() and number.isdecimal() and len(number) < 8 and int(number) for number in numbers)
    if len(numbers) != 2 or not are_valid:
        raise UserError(
            f"model.detector={text} must be [FEATURES,CLASSES], two positive integers, as in "
            "model.detector=[2048,1601]."
        )
    features, classes = map(int, numbers)
    return features, classes


REGION_HOOKS: dict[str, Any] = {
    "complete_config": _complete_config,
    "import_options": {
        "detector": ImportOption(read=_read_detector, form="[FEATURES,CLASSES]", models="models of image regions")
    },
}
"""Hooks of counterparts whose models read regions."""

# As in the released code, BERT's pooler and classifier of two texts become those of image-text matching. The second row
# of its segments is that of regions.
UNITER = replace(
    BERT,
    family="uniter",
    model_type="bert",
    import_only=True,
    rules=(
        *encoder_rules("bert"),
        *MASKED,
        *weight_and_bias("head.itm.pooler", "bert.pooler.dense"),
        *weight_and_bias("head.itm.classify"),
        *(
            rule
            for name in ("project", "project_norm", "box", "box_norm", "norm")
            for rule in weight_and_bias(f"embed.region.{name}")
        ),
        TensorRule("embed.region.mask.weight", ()),
        *REGION_HEADS,
    ),
    unused_prefixes=("cls.seq_relationship.",),
    **REGION_HOOKS,
)

COUNTERPARTS = (UNITER,)
