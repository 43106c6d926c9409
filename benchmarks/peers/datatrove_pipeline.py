"""datatrove from JSON Lines to tokens: Gopher and C4 filters, MinHash in four stages, DocumentTokenizer.

Combined as in its examples/fineweb.py and examples/minhash_deduplication.py, with uncompressed files between the
stages, which is faster. {"files": folder, "out": folder, "tokenizer": file, "workers": 2}
"""

import glob
import json
import sys
import time

import numpy as np


def main() -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.filters import C4QualityFilter, GopherQualityFilter, GopherRepetitionFilter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from datatrove.pipeline.writers import JsonlWriter

    options = json.loads(sys.argv[1])
    out, workers, config = options["out"], options["workers"], MinhashConfig()
    stages = {
        "clean": (
            [
                JsonlReader(options["files"]),
                GopherRepetitionFilter(),
                GopherQualityFilter(),
                C4QualityFilter(),
                JsonlWriter(f"{out}/clean", compression=None),
            ],
            workers,
        ),
        "signatures": (
            [JsonlReader(f"{out}/clean"), MinhashDedupSignature(f"{out}/signatures", config)],
            workers,
        ),
        "buckets": (
            [MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets", config=config)],
            config.num_buckets,
        ),
        "clusters": ([MinhashDedupCluster(f"{out}/buckets", f"{out}/removed", config)], 1),
        "tokens": (
            [
                JsonlReader(f"{out}/clean"),
                MinhashDedupFilter(f"{out}/removed"),
                DocumentTokenizer(f"{out}/tokens", options["tokenizer"], shuffle_documents=False),
            ],
            workers,
        ),
    }
    seconds = {}
    for name, (pipeline, tasks) in stages.items():
        started = time.perf_counter()
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=workers, logging_dir=f"{out}/logs/{name}").run()
        seconds[name] = time.perf_counter() - started
    ends = [np.fromfile(index, "<u8") for index in glob.glob(f"{out}/tokens/*.index")]
    print(
        json.dumps(
            {
                "seconds": sum(seconds.values()),
                "stages": seconds,
                "documents": sum(map(len, ends)),
                "tokens": int(sum(end[-1] for end in ends if len(end))),
            }
        )
    )


if __name__ == "__main__":
    main()
