"""datatrove from JSON lines to tokens: rules of Gopher and C4, MinHash in four stages, DocumentTokenizer.

As its examples/fineweb.py and examples/minhash_deduplication.py put them together, with files between the stages left
uncompressed, which is faster. {"files": folder, "out": folder, "tokenizer": file, "workers": 2}
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

    given = json.loads(sys.argv[1])
    out, workers, config = given["out"], given["workers"], MinhashConfig()
    stages = {
        "clean": (
            [
                JsonlReader(given["files"]),
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
                DocumentTokenizer(f"{out}/tokens", given["tokenizer"], shuffle_documents=False),
            ],
            workers,
        ),
    }
    seconds = {}
    for name, (pipeline, tasks) in stages.items():
        begun = time.perf_counter()
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=workers, logging_dir=f"{out}/logs/{name}").run()
        seconds[name] = time.perf_counter() - begun
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
