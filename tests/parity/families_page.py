"""Generator of docs/families.md from the tables of families and the recorded differences from reference models.

python -m tests.parity.families_page            # with the recorded differences
python -m tests.parity.families_page --measure  # measure them again (tests/parity/differences.yaml)
"""

# ruff: noqa: E501

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from megaptm.families import CATALOGUE, FAMILIES
from megaptm.families.word_vectors import FAMILIES as WORD_FAMILIES
from megaptm.families.word_vectors import WordFamily
from megaptm.hub.counterparts import hugging_face_models
from megaptm.plan.count import count_parameters
from megaptm.spec import Family, published_spec
from tests import ROOT
from tests.drills.conftest import RECORD as SECONDS
from tests.layouts.test_layouts import CASES

PAGE = ROOT / "docs/families.md"
GOLDEN_XL = "golden values of transformers 4.34.1 and the authors' code"
ELMO_STEPS = "three steps of the released code (gradients: of the second)"
RECORD = Path(__file__).with_name("differences.yaml")
HEAD = """# Families

    megaptm families bert                      # sizes, objectives, layouts
    megaptm plan configs/bert/large.yaml       # memory and time of a run

A family is a table in `megaptm/families/`. `configs/` has a tiny config of each family, and one for every published
size except `xl-literal` and `13b-literal`, which are the sizes of GPT-3's table exactly as printed.
`python -m tests.parity.families_page` generates this page.

| column | meaning |
|---|---|
| parameters by size | as papers count them; roberta, spanbert, longformer and bigbird without BERT's pooler, which pre-training does not have |
| objectives | objectives of the family, the default first |
| layouts | number of layouts on which `tests/layouts/test_layouts.py` requires losses and gradient norms of one process within 1e-5: tensor, sequence, pipeline, interleaved pipeline, data parallelism, distributed optimizer, combinations. Of 12 layouts, 2 run with each test and 10 in the drills. [Recurrent families](recurrent.md) have data ranks only |
| Hugging Face | class that computes the same, for import and export |
| largest difference | of logits and gradients of a tiny model with equal weights (`tests/parity`), at most 1e-5. DeBERTa is compared without its mask decoder. Without one Hugging Face class, the reference is named (`tests/families`, `tests/parity/test_gpt_neo.py`) |
| tiny config | CPU seconds of all processes for `tiny.yaml`, killed half-way and resumed on two processes (half as much again as without), with date and commit: `RECORD_SECONDS=1 make drills`, `tests/drills/seconds.yaml` |

| family | parameters by size | objectives | layouts | Hugging Face | largest difference | tiny config |
|---|---|---|---|---|---|---|
"""
WORD_HEAD = """
## Word vectors

These families are tables of vectors and small networks ([word vectors](word-vectors.md)). Numbers of parameters are for
the published number of words.

| family | words | parameters by size | objectives |
|---|---|---|---|
"""


TEXT_ONLY = "RobertaForMaskedLM, of a text alone (gradients: the token table's)"


def render_page() -> str:
    recorded = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    seconds = yaml.safe_load(SECONDS.read_text(encoding="utf-8")) or {}
    rows = (
        _row(family, recorded[family.name], seconds.get(family.name))
        for family in FAMILIES.values()
        if isinstance(family, Family)
    )
    return HEAD + "".join(rows) + WORD_HEAD + "".join(map(_word_row, WORD_FAMILIES))


def _word_row(family: WordFamily) -> str:
    """Return the table row of a family of word vectors, with the published number of words."""
    sizes = ", ".join(f"{size} {family.published(size).parameters:,}" for size in family.sizes)
    cells = (f"{family.name} ({family.paper})", f"{family.tokenizer.vocabulary:,}", sizes, ", ".join(family.objectives))
    return f"| {' | '.join(cells)} |\n"


def _row(family: Family, differences: dict[str, str], seconds: dict[str, object] | None) -> str:
    sizes = ", ".join(f"{size} {count_parameters(published_spec(family, size)):,}" for size in family.sizes)
    layouts = sum(name == family.name for name, _ in CASES)
    difference = ", ".join(
        f"{name} {differences[name]}" for name in ("logits", "losses", "vectors", "gradients") if name in differences
    )
    if "from" in differences:
        difference += f", from {differences['from']}"
    cells = (
        *(f"{family.name} ({family.paper})", sizes, ", ".join(family.objectives), str(layouts)),
        *(" and ".join(hugging_face_models(family)) or "none", difference),
        f"{seconds['cpu']} s ({seconds['date']}, {seconds['commit']})" if seconds else "not recorded yet",
    )
    return f"| {' | '.join(cells)} |\n"


def measure() -> dict[str, dict[str, str]]:
    """Return family -> differences from its reference, and the name of the reference if Hugging Face has none."""
    from tests.families import (
        test_clip,
        test_cove,
        test_deberta_v3,
        test_electra,
        test_neobert,
        test_unilm,
        test_unimo,
        test_uniter,
        test_vit,
    )
    from tests.models.tiny import has_counterpart
    from tests.parity import test_elmo, test_gpt_neo, test_transformer_xl
    from tests.parity.reference import differences

    def format_differences(name: str, values: tuple[float, float], reference: str = "") -> dict[str, str]:
        texts = [f"{value:.0e}" if value else "0" for value in values]
        return dict(zip((name, "gradients"), texts, strict=True)) | ({"from": reference} if reference else {})

    contexts = [test_unilm.differences(context) for context in test_unilm.CONTEXTS]
    unilm = max(logits for logits, _ in contexts), max(gradients for _, gradients in contexts)
    gpt_neo, electra, deberta_v3 = (test.differences() for test in (test_gpt_neo, test_electra, test_deberta_v3))
    with_counterpart = {
        name: format_differences("logits", differences(name))
        for name in CATALOGUE
        if has_counterpart(name, with_decoder=False)
    }
    with TemporaryDirectory() as folder:
        vit = test_vit.differences(Path(folder, "vit"))
        clip = test_clip.differences(Path(folder, "clip"))
    return with_counterpart | {
        "vit": format_differences("logits", vit),
        "clip": format_differences("vectors", clip),
        "uniter": format_differences(
            "losses", test_uniter.differences(), "six losses of the released code (gradients: of two tables)"
        ),
        "unimo": format_differences("logits", test_unimo.differences(), TEXT_ONLY),
        "neobert": format_differences("logits", test_neobert.differences(), "its formulas written out in plain torch"),
        "elmo": format_differences("losses", test_elmo.differences(), ELMO_STEPS),
        "cove": format_differences(
            "vectors", test_cove.differences(), "torch.nn.LSTM over each text (gradients: the encoder's)"
        ),
        "gpt3-banded": format_differences(
            "logits", gpt_neo, "GPTNeoForCausalLM with its scale (gradients: the token table's)"
        ),
        "unilm": format_differences(
            "logits", unilm, "BertForPreTraining that is given the mask (gradients: the token table's)"
        ),
        "electra": format_differences(
            "losses", electra, "a training step of the authors' code, whose gradients reach 25"
        ),
        "transformer-xl": format_differences("logits", test_transformer_xl.differences(clusters=True), GOLDEN_XL),
        "transformer-xl-bytes": format_differences(
            "logits", test_transformer_xl.differences(clusters=False), GOLDEN_XL
        ),
        "deberta-v3": format_differences(
            "losses", deberta_v3, "a training step written out in plain torch, whose gradients reach 15"
        ),
    }


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        RECORD.write_text(yaml.safe_dump(measure(), sort_keys=False), encoding="utf-8")
    PAGE.write_text(render_page(), encoding="utf-8")
