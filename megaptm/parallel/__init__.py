"""Training engine: runs a single-device model on many devices. No other package imports megatron-core."""

import os
import warnings

from megaptm.parallel import cpu

# megatron-core warns at import that Transformer Engine and apex are missing, which are optional here, and about its own
# defaults.
warnings.filterwarnings("ignore", message=".*(Transformer Engine|[Aa]pex|modelopt|tensorstore|zarr|full scope).*")
# torch 2.13 renamed two collectives; megatron-core calls the old names because older versions of torch only have those.
warnings.filterwarnings(
    "ignore", message=".*(all_gather_into_tensor|reduce_scatter_tensor). is deprecated", category=FutureWarning
)
# megatron-core requires this for overlap: a collective must be launched before the product it overlaps with.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
cpu.install()
with cpu.disable_compile():
    import megatron.core
