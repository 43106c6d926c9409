"""LED (Longformer-Encoder-Decoder; Beltagy et al., 2020, section 7): BART, whose encoder sees as Longformer's does."""

from megaptm.families.bart import BART, LAYER
from megaptm.spec import change

# Begun from BART, its 1,024 places copied sixteen times for the encoder (`megaptm import hf`); the decoder sees all, as
# BART's does, and has as many places as that. None of them comes before a text's first.
LED = change(
    BART,
    name="led",
    paper="arXiv:2004.05150",
    context=16_384,
    first_position=0,
    stacks=BART.stacks | {"encoder": change(LAYER, attention="window", window=1024)},
    sizes={name: change(size, stacks={"decoder": change(size, context=1024)}) for name, size in BART.sizes.items()},
)
