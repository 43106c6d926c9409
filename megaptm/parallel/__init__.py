"""The engine: a model written for one device, run on many. The only package that imports megatron-core."""

import os
import warnings

from megaptm.parallel import cpu

# megatron-core says at import that Transformer Engine and apex are missing, which are optional here, and complains of
# its own defaults.
warnings.filterwarnings("ignore", message=".*(Transformer Engine|[Aa]pex|modelopt|tensorstore|zarr|full scope).*")
# It asks for this too, so that a collective and the product it overlaps with are launched in order.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
cpu.install()
with cpu.eager():
    import megatron.core  # noqa: F401
