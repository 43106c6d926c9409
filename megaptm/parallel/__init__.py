"""The engine: a model written for one device, run on many. The only package that imports megatron-core."""

import warnings

from megaptm.parallel import cpu

# megatron-core says at import that Transformer Engine and apex are missing; both are optional here.
warnings.filterwarnings("ignore", message=".*(Transformer Engine|[Aa]pex|modelopt|tensorstore|zarr).*")
cpu.install()
with cpu.eager():
    import megatron.core  # noqa: F401
