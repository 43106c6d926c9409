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

    options = json.loads(sys.argv[1])
    started = time.perf_counter()
    LocalPipelineExecutor(
        [
            JsonlReader(options["files"]),
            # Documents keep their order, because shuffling would be another pass.
            DocumentTokenizer(f"{options['out']}/tokens", options["tokenizer"], shuffle_documents=False),
        ],
        tasks=options["workers"],
        workers=options["workers"],
        logging_dir=f"{options['out']}/logs",
    ).run()
    seconds = time.perf_counter() - started
    counts = [int(np.fromfile(index, "<u8")[-1]) for index in glob.glob(f"{options['out']}/tokens/*.index")]
    print(json.dumps({"seconds": seconds, "tokens": sum(counts)}))


if __name__ == "__main__":
    main()
