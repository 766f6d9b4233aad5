"""Recall and speed of hnswlib, beside `cargo bench -p waymark-index --bench vector -- --dump DIRECTORY`.

    python3 -m pip install hnswlib numpy
    python3 scripts/bench/hnsw.py DIRECTORY [ef_construction] [M]

Reads the vectors and queries that the Rust side wrote, builds with the same numbers of neighbors and candidates, and
searches on one thread with several numbers of candidates, in one call per query and in one call for all queries. One of
these numbers gives about the recall of Waymark.
"""

import sys
import time

import hnswlib
import numpy

K = 10


def main(directory, construction=128, neighbors=16):
    dims = int(open(f"{directory}/dims", encoding="utf-8").read())
    passages, queries = (
        numpy.fromfile(f"{directory}/{name}.f32", dtype="<f4").reshape(-1, dims) for name in ("passages", "queries")
    )
    exact = numpy.argsort(-(queries @ passages.T), axis=1, kind="stable")[:, :K]
    index = hnswlib.Index(space="ip", dim=dims)
    index.init_index(max_elements=len(passages), ef_construction=construction, M=neighbors, random_seed=42)
    begun = time.perf_counter()
    index.add_items(passages)
    print(f"{len(passages)} vectors of {dims} numbers, built in {time.perf_counter() - begun:.1f} s")
    index.set_num_threads(1)
    for candidates in (32, 64, 128, 192, 256, 384):
        index.set_ef(candidates)
        best = together = float("inf")
        for _ in range(3):
            begun = time.perf_counter()
            found = [index.knn_query(query, k=K)[0][0] for query in queries]
            best = min(best, time.perf_counter() - begun)
            # One call for all queries, which saves the cost of a call from Python per query.
            begun = time.perf_counter()
            index.knn_query(queries, k=K, num_threads=1)
            together = min(together, time.perf_counter() - begun)
        hits = sum(len(set(a) & set(b)) for a, b in zip(exact.tolist(), [list(map(int, f)) for f in found]))
        each, all_at_once = len(queries) / best, len(queries) / together
        recall = hits / K / len(queries)
        print(f"hnswlib ef {candidates:>4}  {each:>8.0f} queries/s, in one call {all_at_once:>8.0f}  recall@{K} {recall:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
