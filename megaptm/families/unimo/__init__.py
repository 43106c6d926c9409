"""UNIMO (Li et al., 2020): RoBERTa over a text and image regions, with an attention mask from the field `order`."""

from megaptm.families.roberta import ROBERTA
from megaptm.families.uniter import DETECTOR
from megaptm.families.uniter.spec import RegionInput
from megaptm.spec import TokenInput, change

# Neither regions nor tokens have segments; regions have one norm, and the whole image is the first region. Some tasks
# generate fragments of a text: `order` then defines the attention mask, as in UniLM.
UNIMO = change(
    ROBERTA,
    name="unimo",
    paper="arXiv:2012.15409",
    inputs=(TokenInput(), RegionInput(norms="sum", boxes=5, hidden="zeros")),
    stacks={"encoder": change(ROBERTA.last_block, visibility="ordered")},
    heads=("mlm", "mrfr", "mrc-kl", "cmcl"),
    objectives=(
        "unimo",
        "text-spans",
        "text-fragments",
        "image-text-spans",
        "image-text-fragments",
        "masked-areas",
        "masked-areas-class",
        "masked-areas-distribution",
        "cross-modal-contrast",
    ),
    sizes={name: change(size, inputs={"detector": DETECTOR}) for name, size in ROBERTA.sizes.items()},
)

FAMILIES = (UNIMO,)
