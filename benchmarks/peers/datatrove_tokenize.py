"""datatrove's DocumentTokenizer over JSON lines: {"files": folder, "out": folder, "tokenizer": file, "workers": 2}."""

import glob
import json
import sys
import time

import numpy as np


def main() -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    given = json.loads(sys.argv[1])
    begun = time.perf_counter()
    LocalPipelineExecutor(
        [
            JsonlReader(given["files"]),
            # Documents stay in their order: shuffling would be one more pass.
            DocumentTokenizer(f"{given['out']}/tokens", given["tokenizer"], shuffle_documents=False),
        ],
        tasks=given["workers"],
        workers=given["workers"],
        logging_dir=f"{given['out']}/logs",
    ).run()
    seconds = time.perf_counter() - begun
    counts = [int(np.fromfile(index, "<u8")[-1]) for index in glob.glob(f"{given['out']}/tokens/*.index")]
    print(json.dumps({"seconds": seconds, "tokens": sum(counts)}))


if __name__ == "__main__":
    main()
