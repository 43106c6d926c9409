"""Word vectors: embedding tables without layers, trained by compiled loops. Corpora, sample order, checkpoints and runs
are shared with other models."""

import os

# numba reads `.numba_config.yaml` in the working directory for what the environment does not set. A folder from
# somebody else could name a cache there, whose pickles run code.
for name in ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES"):
    os.environ.setdefault(name, "")
