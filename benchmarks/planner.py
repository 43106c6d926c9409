"""The planner beside published runs: `python benchmarks/planner.py` prints the table of docs/planner.md."""

from __future__ import annotations

from statistics import median

from megaptm.plan.published import compare_all, markdown


def main() -> None:
    """The table, and how far off the planner is."""
    rows = compare_all()
    print(markdown(rows))
    errors = [abs(row.error) for row in rows]
    print(f"\n{len(rows)} runs; median {median(errors):.1%} off, the worst {max(errors):.1%}")
    print(f"METRIC planner_median_error {median(errors):.3f} ratio goal <=0.10")
    print(f"METRIC planner_worst_error {max(errors):.3f} ratio goal <=0.20")


if __name__ == "__main__":
    main()
