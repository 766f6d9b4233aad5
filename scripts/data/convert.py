#!/usr/bin/env python3
"""Converts published question sets into the files that `waymark eval` and `train data` read (docs/training.md, "Data").

    scripts/data/convert.py 2wikimultihopqa.json --corpus 2wikimultihopqa_corpus.json --out data/2wiki
    scripts/data/convert.py train.json=train.jsonl --limit 500 --out data/2wiki_train
    scripts/data/convert.py hotpot_train.json=train.jsonl hotpot_dev.json=questions.jsonl --limit 500 --out data/hotpotqa
    scripts/data/convert.py musique_train.json=train.jsonl --openie openie_musique_train.json --out data/musique_train

Writes `corpus.jsonl`, a file for each source (`questions.jsonl` unless it is named after `=`) and, with `--openie`,
`openie.jsonl` into the folder `--out`. The forms of HotpotQA (2WikiMultiHopQA has the same), MuSiQue, RouteRAG's PopQA and
HippoRAG's queries are told apart by their fields. Without `--corpus` the corpus consists of the passages that come with the
questions.

White space is collapsed, and passages with the same letters and digits count once. A passage has the ID of its first
occurrence: the name of the folder, or `--prefix`, and a number.
"""

import argparse
import json
import re
import sys
from pathlib import Path


class FormatError(ValueError):
    """Error of a file whose form is not one of the known ones."""


def collapsed(text):
    return " ".join(text.split())


def first_of_each(values):
    return list(dict.fromkeys(values))


def read(path):
    """Returns the content of a JSON file, or the lines of a JSONL file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        # Not `splitlines`: a line of JSON may contain U+2028.
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    return json.loads(text)


class Corpus:
    """Passages in the order of their first occurrence."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.passages = {}

    @staticmethod
    def key(title, text):
        return tuple(re.sub(r"\W+", "", part).lower() for part in (title, text))

    def add(self, title, text):
        """Adds a passage if it is new. Returns its ID."""
        number = len(self.passages)
        row = {"id": f"{self.prefix}-{number:05}", "title": collapsed(title), "text": collapsed(text)}
        return self.passages.setdefault(self.key(title, text), row)["id"]

    def find(self, title, text):
        """Returns the ID of a passage, or `None` if the corpus lacks it."""
        row = self.passages.get(self.key(title, text))
        return row and row["id"]


def corpus_passages(content):
    """Yields title and text of each passage of a corpus: a list of objects, or an object of titles and sentences."""
    if isinstance(content, dict):
        for title, sentences in content.items():
            yield title, "".join(sentences)
        return
    for row in content:
        yield row["title"], row["text"]


def question_passages(row):
    """Returns the passages that come with a question, each as title and text, and those of them that support the answer."""
    if "context" in row:
        # Sentences of HotpotQA begin with their space, those of 2WikiMultiHopQA do not.
        joint = " " if "evidences" in row else ""
        gold = first_of_each(title for title, _ in row["supporting_facts"])
        listed = [(title, joint.join(sentences)) for title, sentences in row["context"]]
        # The order of the supporting facts is that of the hops.
        return listed, sorted((one for one in listed if one[0] in gold), key=lambda one: gold.index(one[0]))
    if "paragraphs" not in row:
        raise FormatError("the row has neither `context` nor `paragraphs`")
    paragraphs = row["paragraphs"]
    # MuSiQue calls the text `paragraph_text`, PopQA's files `text`.
    listed = [(one["title"], one.get("paragraph_text", one.get("text"))) for one in paragraphs]
    return listed, [passage for one, passage in zip(paragraphs, listed, strict=True) if one["is_supporting"]]


def own_fields(row):
    """Returns the fields of a question apart from its passages."""
    if "possible_answers" in row:
        answers = json.loads(row["possible_answers"])
        triple = [row["subj"], row["prop"], row["obj"]]
        return {"id": f"popqa-{row['id']}", "answers": answers, "type": row["prop"], "triple": triple}
    if "question_decomposition" in row:
        steps = [{"question": step["question"], "answer": step["answer"]} for step in row["question_decomposition"]]
        answers = [row["answer"], *row["answer_aliases"]]
        return {"id": row["id"], "answers": answers, "type": row["id"].split("__")[0], "decomposition": steps}
    number = row.get("_id", row.get("id"))
    if number is None:
        raise FormatError("the row has neither `_id` nor `id`")
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    return {"id": str(number), "answers": answers, **{name: row[name] for name in ("type", "evidences") if name in row}}


def convert(rows, corpus, closed):
    """Returns the questions. A `closed` corpus takes no passages of theirs, so that some supporting ones may be missing."""
    questions = []
    for row in rows:
        listed, gold = question_passages(row)
        if not closed:
            for title, text in listed:
                corpus.add(title, text)
        ids = [corpus.find(title, text) for title, text in gold]
        fields = own_fields(row)
        fields["answers"] = first_of_each(fields["answers"])
        supporting = first_of_each(one for one in ids if one)
        complete = bool(ids) and None not in ids
        questions.append({"question": row["question"], **fields, "supporting": supporting, "supporting_complete": complete})
    return questions


def convert_openie(content, corpus):
    """Returns the triples of each passage of the corpus that HippoRAG's file has, and the number of malformed ones."""
    rows, malformed = {}, 0
    for record in content["docs"]:
        title, _, text = record["passage"].partition("\n")
        known = corpus.find(title, text)
        if known is None or known in rows:
            continue
        triples = [triple for triple in record["extracted_triples"] if is_triple(triple)]
        malformed += len(record["extracted_triples"]) - len(triples)
        rows[known] = {"id": known, "triples": triples}
    return list(rows.values()), malformed


def is_triple(triple):
    return isinstance(triple, list) and len(triple) == 3 and all(isinstance(part, str) for part in triple)


def write(path, rows):
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{path}: {len(rows)} rows", file=sys.stderr)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sources", nargs="+", metavar="FILE[=NAME]", help="published questions (.json, .jsonl), and the file to write")
    parser.add_argument("--corpus", type=Path, help="published corpus; the default is the passages of the questions")
    parser.add_argument("--openie", type=Path, help="OpenIE output of HippoRAG")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--prefix", help="beginning of the passages' IDs; the default is the name of the folder")
    parser.add_argument("--limit", type=int, help="number of questions of each file, from the first on; the default is all")
    options = parser.parse_args(arguments)
    corpus = Corpus(options.prefix or options.out.resolve().name)
    if options.corpus:
        for title, text in corpus_passages(read(options.corpus)):
            corpus.add(title, text)
    questions = {}
    for source in options.sources:
        path, _, name = source.partition("=")
        try:
            rows = read(Path(path))[: options.limit]
            questions[name or "questions.jsonl"] = convert(rows, corpus, closed=options.corpus is not None)
        except (FormatError, KeyError) as error:
            raise SystemExit(f"{path}: unknown form: {error}") from error
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "corpus.jsonl", list(corpus.passages.values()))
    for name, rows in questions.items():
        write(options.out / name, rows)
    if options.openie:
        rows, malformed = convert_openie(read(options.openie), corpus)
        write(options.out / "openie.jsonl", rows)
        print(f"{malformed} triples without three parts were left out", file=sys.stderr)


if __name__ == "__main__":
    main()
