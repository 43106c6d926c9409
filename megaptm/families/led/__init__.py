"""LED (Longformer-Encoder-Decoder; Beltagy et al., 2020, section 7): BART with Longformer's attention in the
encoder."""

from megaptm.families.bart import BART, LAYER
from megaptm.families.longformer.spec import WindowSpec
from megaptm.spec import change

# Initialized from BART, with its 1,024 positions copied sixteen times for the encoder (`megaptm import hf`). The
# decoder has BART's full attention and number of positions. Position ids start at 0.
LED = change(
    BART,
    name="led",
    paper="arXiv:2004.05150",
    context=16_384,
    embedding={"first_position": 0},
    stacks=BART.stacks | {"encoder": change(LAYER, attention=WindowSpec(window=1024))},
    sizes={name: change(size, stacks={"decoder": change(size, context=1024)}) for name, size in BART.sizes.items()},
)

FAMILIES = (LED,)
