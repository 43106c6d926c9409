"""Training engine: runs a single-device model on many devices. No other package imports megatron-core."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

from megaptm.parallel import cpu


@contextlib.contextmanager
def hide_loggers() -> Iterator[None]:
    """Make imports of megatron-core's optional loggers fail. Each rank would import both, which takes a sixth of the
    time of its start, and use neither."""
    hidden = {"wandb", "torch.utils.tensorboard"} - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


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
with cpu.disable_compile(), hide_loggers():
    import megatron.core
