"""The engine: a model written for one device, run on many. The only package that imports megatron-core."""

import os
import warnings

from megaptm.parallel import cpu

# megatron-core says at import that Transformer Engine and apex are missing, which are optional here, and complains of
# its own defaults.
warnings.filterwarnings("ignore", message=".*(Transformer Engine|[Aa]pex|modelopt|tensorstore|zarr|full scope).*")
# torch 2.13's new names of two collectives, which older ones have not; megatron-core calls the old names, too.
warnings.filterwarnings(
    "ignore", message=".*(all_gather_into_tensor|reduce_scatter_tensor). is deprecated", category=FutureWarning
)
# It asks for this too, so that a collective and the product it overlaps with are launched in order.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
cpu.install()
with cpu.eager():
    import megatron.core  # noqa: F401
