"""The peer of `cargo bench -p waymark-index --bench pagerank`: the same walks with python-igraph (prpack).

    python scripts/bench/ppr.py FOLDER

FOLDER is what the bench wrote. Prints the median and 95th percentile per walk, and how far igraph's first result is
from the definition.
"""

import json
import pathlib
import sys
import time

import igraph
import numpy as np
import scipy.sparse as sparse


def main(folder: pathlib.Path) -> None:
    lines = (folder / "edges.txt").read_text().splitlines()
    nodes, table = int(lines[0]), np.loadtxt(lines[1:], dtype=np.float64, ndmin=2)
    ends, weights = table[:, :2].astype(int), table[:, 2]
    graph = igraph.Graph(n=nodes, edges=ends.tolist(), directed=False)
    graph.es["weight"] = weights.tolist()
    resets = [json.loads(line) for line in (folder / "resets.jsonl").read_text().splitlines()]
    times, masses = [], []
    for reset in resets:
        start = time.perf_counter()
        mass = graph.personalized_pagerank(
            damping=0.5, directed=False, weights="weight", reset=reset, implementation="prpack"
        )
        times.append((time.perf_counter() - start) * 1e3)
        masses.append(mass)
    print(f"igraph {igraph.__version__}, {nodes} nodes, {len(table)} edges, {len(resets)} walks:")
    print(f"p50 {np.percentile(times, 50):.2f} ms, p95 {np.percentile(times, 95):.2f} ms, least {min(times):.2f} ms")
    adjacency = sparse.coo_matrix((weights, (ends[:, 0], ends[:, 1])), shape=(nodes, nodes))
    adjacency = (adjacency + adjacency.T).tocsc()
    degrees = np.asarray(adjacency.sum(axis=0)).ravel()
    # The definition, iterated: every step halves what is missing.
    chance = adjacency @ sparse.diags(np.divide(1.0, degrees, out=np.zeros(nodes), where=degrees > 0))
    start = np.array(resets[0]) / np.sum(resets[0])
    mass = start
    for _ in range(60):
        mass = 0.5 * (chance @ mass + mass[degrees == 0].sum() * start) + 0.5 * start
    print(f"summed error of the first: {np.abs(mass - np.array(masses[0])).sum():.1e}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
