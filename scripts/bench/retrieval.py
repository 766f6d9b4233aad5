"""Recall of BM25 (bm25s) and dense search (sentence-transformers, exact), beside `waymark eval retrieval`.

    python3 -m pip install bm25s PyStemmer sentence-transformers
    python3 scripts/bench/retrieval.py --model DIRECTORY --corpus corpus.jsonl --questions questions.jsonl \
        [--index corpus.index] [--cache vectors.npy] [--ours report.json] [--json FILE]

BM25 runs with several analyzers, step by step from the defaults of bm25s to those of Waymark, and last with tantivy's
rounding of lengths, so that the source of a difference shows. `--ours` names the report of `waymark eval retrieval
--json` on the same files: its row is printed after the rows of each peer, with the difference in recall in points.
`--cache` keeps the passages' vectors.
"""

import argparse
import collections
import itertools
import json
import math
import re
import time
import unicodedata


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def known(questions):
    """Yields the questions whose supporting passages are known, as `waymark eval retrieval` does."""
    for row in questions:
        supporting = list(dict.fromkeys(row.get("supporting") or []))
        if supporting and row.get("supporting_complete") is not False:
            yield row["question"], supporting


def score(ranked, questions, cuts):
    """Returns the mean recall at each cutoff and the mean reciprocal rank; `ranked` are lists of IDs."""
    recall, reciprocal = [0.0] * len(cuts), 0.0
    for found, (_, supporting) in zip(ranked, questions, strict=True):
        places = [place for place, passage in enumerate(found, 1) if passage in supporting]
        for i, cut in enumerate(cuts):
            recall[i] += sum(place <= cut for place in places) / len(supporting)
        reciprocal += 1 / places[0] if places else 0
    count = len(questions)
    return {"recall": {str(cut): value / count for cut, value in zip(cuts, recall)}, "mrr": reciprocal / count}


def fold(text):
    """Removes accents, as tantivy's AsciiFoldingFilter does for Latin letters."""
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c))


def analyzers(stemmer):
    """Returns the analyzers: name, number of repetitions of the title, and function from text to terms."""
    from bm25s.stopwords import STOPWORDS_EN

    stop = set(STOPWORDS_EN)

    def words(pattern, text, drop=frozenset(), folded=False):
        text = fold(text) if folded else text
        terms = [term for term in re.findall(pattern, text.lower()) if term not in drop]
        return stemmer.stemWords(terms)

    library, runs = r"(?u)\b\w\w+\b", r"[^\W_]+"
    return [
        ("bm25s: \\w\\w+, stop words dropped", 1, lambda text: words(library, text, stop)),
        ("stop words kept", 1, lambda text: words(library, text)),
        ("runs of letters and digits", 1, lambda text: words(runs, text)),
        ("accents folded", 1, lambda text: words(runs, text, folded=True)),
        ("title twice = Waymark's", 2, lambda text: words(runs, text, folded=True)),
    ]


def by_words(corpus, questions, depth):
    import bm25s
    import Stemmer

    ids = [row["id"] for row in corpus]
    for name, title, terms in analyzers(Stemmer.Stemmer("english")):
        texts = [terms("\n".join([row["title"]] * title + [row["text"]])) for row in corpus]
        # Lucene's formula is tantivy's: idf = ln(1 + (N - n + 0.5) / (n + 0.5)).
        engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
        engine.index(texts, show_progress=False)
        begun = time.perf_counter()
        ranked = []
        for question, _ in questions:
            asked = terms(question)
            if not any(term in engine.vocab_dict for term in asked):
                ranked.append([])
                continue
            places, scores = engine.retrieve([asked], k=depth, show_progress=False)
            ranked.append([ids[place] for place, value in zip(places[0], scores[0]) if value > 0])
        yield name, ranked, (time.perf_counter() - begun) / len(questions) * 1e3


def rounded(length):
    """Rounds a length down to the nearest one that tantivy can store in a byte."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)


def by_rounded_words(corpus, questions, depth):
    """Searches with the last analyzer and the two properties in which tantivy differs from bm25s: it keeps a passage's
    length in a byte, and ranks equal scores by their order in the corpus."""
    import numpy
    import Stemmer

    name, title, terms = analyzers(Stemmer.Stemmer("english"))[-1]
    texts = [terms("\n".join([row["title"]] * title + [row["text"]])) for row in corpus]
    mean = sum(map(len, texts)) / len(texts)
    norms = numpy.array([1.2 * (0.25 + 0.75 * rounded(len(text)) / mean) for text in texts], dtype=numpy.float32)
    postings = {}
    for place, text in enumerate(texts):
        for term, times in collections.Counter(text).items():
            postings.setdefault(term, []).append((place, times))
    begun = time.perf_counter()
    ranked = []
    for question, _ in questions:
        scores = numpy.zeros(len(texts), dtype=numpy.float32)
        for term in terms(question):
            if found := postings.get(term):
                places, times = numpy.array(found).T
                idf = math.log(1 + (len(texts) - len(found) + 0.5) / (len(found) + 0.5))
                scores[places] += numpy.float32(2.2 * idf) * times / (times + norms[places])
        best = numpy.argsort(-scores, kind="stable")[:depth]
        ranked.append([corpus[place]["id"] for place in best if scores[place] > 0])
    yield f"{name}, lengths in a byte, ties in order", ranked, (time.perf_counter() - begun) / len(questions) * 1e3


def by_vector(corpus, questions, depth, directory, cache):
    import numpy
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    model = SentenceTransformer(directory, device="cpu")
    try:
        vectors = numpy.load(cache)
    except (OSError, TypeError, ValueError):
        texts = [f"{row['title']}\n{row['text']}" for row in corpus]
        vectors = model.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=True)
        if cache:
            numpy.save(cache, vectors)
    assert len(vectors) == len(corpus), "the cached vectors are of another corpus"
    begun = time.perf_counter()
    ranked = []
    for question, _ in questions:
        scores = vectors @ model.encode([question], normalize_embeddings=True, show_progress_bar=False)[0]
        best = numpy.argsort(-scores, kind="stable")[:depth]
        ranked.append([corpus[place]["id"] for place in best])
    yield "sentence-transformers, exact", ranked, (time.perf_counter() - begun) / len(questions) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "corpus", "questions"):
        parser.add_argument(f"--{name}", required=name != "model")
    for name in ("cache", "ours", "json"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--k", default="1,2,5,10")
    args = parser.parse_args()
    cuts = sorted(int(cut) for cut in args.k.split(","))
    seen = set()
    # Passages that repeat an earlier one collapse, as in the index.
    corpus = [row for row in rows(args.corpus) if not ((key := (row["title"], row["text"])) in seen or seen.add(key))]
    questions = list(known(rows(args.questions)))
    ours = {row["way"]: row for row in json.load(open(args.ours))["rows"]} if args.ours else {}
    report = []
    words = itertools.chain(by_words(corpus, questions, cuts[-1]), by_rounded_words(corpus, questions, cuts[-1]))
    peers = [("passage:bm25", words)]
    if args.model:
        peers.append(("passage:dense", by_vector(corpus, questions, cuts[-1], args.model, args.cache)))
    print(f"{len(corpus)} passages, {len(questions)} questions")
    print(f"{'':44}" + "".join(f"{'R@' + str(cut):>8}" for cut in cuts) + f"{'MRR':>9}{'ms':>8}")
    for way, results in peers:
        for name, ranked, milliseconds in results:
            row = {"way": way, "peer": name, "milliseconds": milliseconds} | score(ranked, questions, cuts)
            report.append(row)
            show(name, row)
        if way in ours:
            show(f"Waymark {way}", ours[way])
            differences = [100 * (ours[way]["recall"][str(cut)] - row["recall"][str(cut)]) for cut in cuts]
            print(f"{'  difference to the row before, in points':44}" + "".join(f"{d:>+8.2f}" for d in differences))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=2)


def show(name, row):
    recall = "".join(f"{100 * value:>8.2f}" for _, value in sorted(row["recall"].items(), key=lambda item: int(item[0])))
    print(f"{name:44}{recall}{row['mrr']:>9.4f}{row['milliseconds']:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
