"""docs/families.md, from the tables of families and from what tests compare.

python -m tests.parity.families_page            # with the differences recorded last
python -m tests.parity.families_page --measure  # measures them anew (tests/parity/differences.yaml)
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from megaptm.families import CATALOGUE
from megaptm.plan.count import count
from megaptm.spec import Family, published
from tests.layouts.test_layouts import CASES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/families.md"
RECORD = Path(__file__).with_name("differences.yaml")
HEAD = """# Families

Each is a table in `megaptm/families/`, with a config for every published size and one that is tiny in
`configs/<family>/`; `megaptm families NAME` shows its sizes, `megaptm plan configs/<family>/<size>.yaml` what a run
of it needs. This page is generated: `python -m tests.parity.families_page`.

**Parameters** are those that papers count; of roberta and spanbert without BERT's pooler, which they count and
pre-training does not have. **Reference**: the model of Hugging Face's with which a tiny one shares its weights in
`tests/parity`, and the largest difference seen between the two, of any logit and of any gradient of any parameter;
at most 1e-5 passes. It has no mask decoder: DeBERTa is compared without its own. ELECTRA and DeBERTa-v3 are two models
there: `tests/families` compares each with its own. **Layouts**: each is trained there
by `tests/layouts/test_layouts.py`, and must have the losses and gradient norms of one process to 1e-5: tensor,
sequence, pipeline, interleaved pipeline, data parallel, distributed optimizer, and mixtures.

| family | parameters by size | trained by | layouts | reference | largest difference |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole of it."""
    recorded = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return HEAD + "".join(_row(family, recorded.get(family.name)) for family in CATALOGUE.values())


def _row(family: Family, seen: dict[str, str] | None) -> str:
    sizes = ", ".join(f"{size} {count(published(family, size)):,}" for size in family.sizes)
    layouts = sum(name == family.name for name, _ in CASES)
    reference = f"{seen['model']} | logits {seen['logits']}, gradients {seen['gradients']}" if seen else "none | -"
    names = f"{family.name} ({family.paper})"
    return f"| {names} | {sizes} | {', '.join(family.objectives)} | {layouts} | {reference} |\n"


def measure() -> dict[str, dict[str, str]]:
    """Family -> its reference and the differences from it."""
    from megaptm.hub.counterparts import counterpart_of
    from tests.models.tiny import has_counterpart, tiny_spec
    from tests.parity.reference import differences

    found = {}
    for name in (name for name in CATALOGUE if has_counterpart(name, with_decoder=False)):
        logits, gradients = differences(name)
        model = counterpart_of(tiny_spec(name)).model
        found[name] = {"model": model, "logits": f"{logits:.0e}", "gradients": f"{gradients:.0e}"}
    return found


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        RECORD.write_text(yaml.safe_dump(measure(), sort_keys=False), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
