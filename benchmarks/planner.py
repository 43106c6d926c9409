"""The planner beside published runs: `python benchmarks/planner.py` prints the table of docs/planner.md."""

from __future__ import annotations

from statistics import median

from megaptm.plan.published import compare_all, markdown


def main() -> None:
    """The table, and how far off it is."""
    rows = compare_all()
    print(markdown(rows))
    errors = [abs(row.error) for row in rows]
    print(f"\n{len(rows)} runs; median {median(errors):.1%} off, the worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
