"""Planner compared with published runs: `python benchmarks/planner.py` prints the tables of docs/planner.md."""

from __future__ import annotations

from statistics import median

from common.options import Options
from published import memory as published_memory
from published import runs as published


def main() -> None:
    """Print the tables and the errors of the planner. `--short` changes nothing, because this takes two seconds."""
    Options(__doc__).read()
    rows = published.compare_all()
    print(published.summary(rows), published_memory.markdown(), published.markdown(rows), sep="\n\n")
    errors = [abs(row.error) for row in rows]
    memory = [abs(row.planned() / row.peak - 1) for row in published_memory.rows()]
    print(f"\n{len(rows)} runs: median error {median(errors):.1%}, maximum error {max(errors):.1%}")
    print(f"METRIC planner_median_error {median(errors):.3f} ratio goal <=0.10")
    print(f"METRIC planner_worst_error {max(errors):.3f} ratio goal <=0.20")
    print(f"METRIC planner_worst_memory_error {max(memory):.3f} ratio goal <=0.10")


if __name__ == "__main__":
    main()
