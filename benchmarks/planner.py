"""Planner compared with published runs and with this engine: `python benchmarks/planner.py` prints the tables of
docs/planner.md."""

from __future__ import annotations

from statistics import mean, median

from common.options import Options
from published import engine
from published import memory as published_memory
from published import runs as published


def main() -> None:
    """Print the tables and the errors of the planner. `--short` changes nothing, because this takes three seconds."""
    Options(__doc__).read()
    rows, later = published.compare_all(), published.compare_others()
    groups = {"runs.yaml": rows} | later
    later_rows = [row for group in later.values() for row in group]
    print(published.errors_markdown(groups), published.layouts_markdown(later), sep="\n\n")
    print("", published.summary(later_rows, published.OTHERS), engine.markdown(), sep="\n\n")
    print("", published.summary(rows), published_memory.markdown(), published.markdown(rows), sep="\n\n")
    print("", published.markdown(later_rows), sep="\n\n")
    errors = [abs(row.error) for row in rows]
    held = [row.error for row in later[published.HELD_OUT]]
    memory = [abs(row.planned() / row.peak - 1) for row in published_memory.rows()]
    print(f"\n{len(rows)} runs: median error {median(errors):.1%}, maximum error {max(errors):.1%}")
    print(f"METRIC planner_median_error {median(errors):.3f} ratio goal <=0.10")
    print(f"METRIC planner_worst_error {max(errors):.3f} ratio goal <=0.20")
    print(f"METRIC planner_worst_memory_error {max(memory):.3f} ratio goal <=0.10")
    print(f"METRIC planner_held_out_median_error {median(map(abs, held)):.3f} ratio goal <=0.08")
    print(f"METRIC planner_held_out_mean_error {abs(mean(held)):.3f} ratio goal <=0.03")
    print(f"METRIC planner_held_out_p95_error {published.percentile_95(sorted(map(abs, held))):.3f} ratio goal <=0.25")


if __name__ == "__main__":
    main()
