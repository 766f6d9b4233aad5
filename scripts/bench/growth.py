"""Draws what `cargo bench -p waymark-index --bench growth -- --csv FILE` measured.

    python3 -m pip install matplotlib
    python3 scripts/bench/growth.py FILE.csv docs/growth.png

Both axes are logarithmic; a dashed line shows what growing in proportion would be.
"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plot

PANELS = [
    ("Build", "seconds", {"build_s": "build"}),
    ("Disk and memory", "MiB", {"disk_mib": "on disk", "build_peak_mib": "build, peak", "search_peak_mib": "search, peak"}),
    ("Search, median", "milliseconds", {f"{way}_p50_ms": way for way in ("bm25", "dense", "fused", "graph", "hybrid")}),
    ("Search, 95th percentile", "milliseconds", {f"{way}_p95_ms": way for way in ("bm25", "dense", "fused", "graph", "hybrid")}),
]


def main(table, picture):
    with open(table, encoding="utf-8") as lines:
        rows = sorted(({name: float(cell) for name, cell in row.items()} for row in csv.DictReader(lines)), key=lambda row: row["passages"])
    sizes = [row["passages"] for row in rows]
    figure, axes = plot.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.6), layout="constrained")
    for axis, (title, unit, series) in zip(axes, PANELS, strict=True):
        tops = []
        for column, label in series.items():
            values = [row[column] for row in rows]
            if all(value == value for value in values):
                axis.plot(sizes, values, marker="o", label=label)
                tops.append(values[0])
        if tops:
            axis.plot(sizes, [max(tops) * size / sizes[0] for size in sizes], "--", color="grey", linewidth=0.8)
        axis.set(title=title, xlabel="passages", ylabel=unit, xscale="log", yscale="log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
