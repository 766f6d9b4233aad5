"""Tests of `convert.py` with small files in each of the published forms.

    python3 scripts/data/convert_test.py
"""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

import convert

ANN = {"title": "Ann Lee", "text": "Ann\u2009Lee was born in  Rome."}
BOB = {"title": "Bob Ray", "text": "Bob Ray married Ann Lee."}


def musique():
    paragraphs = [
        {"idx": 0, "title": "Ann Lee", "paragraph_text": ANN["text"], "is_supporting": True},
        {"idx": 1, "title": "Ann Lee", "paragraph_text": "Ann Lee was born in Rome", "is_supporting": False},
        {"idx": 2, "title": "Bob Ray", "paragraph_text": BOB["text"], "is_supporting": True},
    ]
    steps = [
        {"id": 1, "question": "Bob Ray >> spouse", "answer": "Ann Lee", "paragraph_support_idx": 2},
        {"id": 2, "question": "Where was #1 born?", "answer": "Rome", "paragraph_support_idx": 0},
    ]
    return {"id": "2hop__1_2", "question": "Where was the wife of Bob Ray born?", "paragraphs": paragraphs,
            "question_decomposition": steps, "answer": "Rome", "answer_aliases": ["Roma", "Rome"], "answerable": True}  # fmt: skip


def hotpotqa(**more):
    ann, bob = ["Ann Lee sings.", " She was born in Rome."], ["Bob Ray married Ann Lee."]
    context = [["Ann Lee", ann], ["Bob Ray", bob], ["Oslo", ["A city."]]]
    return {"_id": "5a", "question": "Where was the wife of Bob Ray born?", "answer": "Rome", "type": "bridge", "level": "hard",
            "context": context, "supporting_facts": [["Bob Ray", 0], ["Ann Lee", 1], ["Ann Lee", 0]], **more}  # fmt: skip


class Converts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    def run_on(self, *arguments):
        """Converts files. Returns the passages and the questions."""
        out = self.folder / "set"
        with contextlib.redirect_stderr(io.StringIO()):
            convert.main(["--out", str(out), *arguments])
        return self.rows("corpus.jsonl"), self.rows("questions.jsonl")

    def rows(self, name):
        return [json.loads(line) for line in (self.folder / "set" / name).read_text(encoding="utf-8").splitlines()]

    def test_musique_keeps_its_steps_and_counts_equal_passages_once(self):
        source = self.file("musique.jsonl", json.dumps(musique()) + "\n")
        passages, [question] = self.run_on(source)
        self.assertEqual([row["id"] for row in passages], ["set-00000", "set-00001"])
        self.assertEqual(passages[0]["text"], "Ann Lee was born in Rome.")
        self.assertEqual(question["answers"], ["Rome", "Roma"])
        self.assertEqual(question["supporting"], ["set-00000", "set-00001"])
        self.assertEqual((question["type"], question["supporting_complete"]), ("2hop", True))
        self.assertEqual(question["decomposition"][1], {"question": "Where was #1 born?", "answer": "Rome"})

    def test_hotpotqa_supports_in_the_order_of_its_facts(self):
        passages, [question] = self.run_on(self.file("hotpot.json", [hotpotqa()]), "--prefix", "hp")
        self.assertEqual(passages[0]["text"], "Ann Lee sings. She was born in Rome.")
        self.assertEqual((question["id"], question["type"]), ("5a", "bridge"))
        self.assertEqual(question["supporting"], ["hp-00001", "hp-00000"])
        self.assertNotIn("evidences", question)

    def test_2wiki_joins_sentences_by_a_space_and_keeps_its_triples(self):
        evidences = [["Bob Ray", "spouse", "Ann Lee"], ["Ann Lee", "place of birth", "Rome"]]
        context = [["Ann Lee", ["Ann Lee sings.", "She was born in Rome."]], ["Bob Ray", ["Bob Ray married Ann Lee."]]]
        passages, [question] = self.run_on(self.file("train.json", [hotpotqa(evidences=evidences, context=context)]))
        self.assertEqual(passages[0]["text"], "Ann Lee sings. She was born in Rome.")
        self.assertEqual(question["evidences"], evidences)

    def test_popqa_has_a_triple_and_its_aliases(self):
        row = {"id": 7, "subj": "Ann Lee", "prop": "place of birth", "obj": "Rome", "question": "In what city was Ann Lee born?",
               "possible_answers": "[\"Rome\", \"Roma\", \"Rome\"]", "paragraphs": [{**ANN, "is_supporting": True}]}  # fmt: skip
        _, [question] = self.run_on(self.file("popqa.json", [row]))
        self.assertEqual((question["id"], question["answers"]), ("popqa-7", ["Rome", "Roma"]))
        self.assertEqual((question["type"], question["triple"]), ("place of birth", ["Ann Lee", "place of birth", "Rome"]))

    def test_queries_of_hipporag_may_have_several_answers(self):
        row = {"id": "q1", "question": "Where?", "answer": ["Rome", "Roma"], "paragraphs": [{**ANN, "is_supporting": True}]}
        _, [question] = self.run_on(self.file("queries.json", [row]))
        self.assertEqual((question["answers"], question["supporting"]), (["Rome", "Roma"], ["set-00000"]))

    def test_a_given_corpus_is_taken_as_it_is(self):
        source = self.file("musique.json", [musique()])
        passages, [question] = self.run_on(source, "--corpus", self.file("corpus.json", [BOB]))
        self.assertEqual([row["title"] for row in passages], ["Bob Ray"])
        self.assertEqual((question["supporting"], question["supporting_complete"]), (["set-00000"], False))
        passages, _ = self.run_on(source, "--corpus", self.file("titles.json", {"Oslo": ["A city.", " It is old."]}))
        self.assertEqual(passages, [{"id": "set-00000", "title": "Oslo", "text": "A city. It is old."}])

    def test_triples_name_the_passages_of_the_corpus(self):
        whole = ["Ann Lee", "was born in", "Rome"]
        docs = [{"passage": f"Ann Lee\n{ANN['text']}", "extracted_triples": [whole, ["Ann", "sings"], ["Ann", "is", 7]]},
                {"passage": "Oslo\nA city.", "extracted_triples": [["Oslo", "is", "city"]]}]  # fmt: skip
        self.run_on(self.file("musique.json", [musique()]), "--openie", self.file("openie.json", {"docs": docs}))
        self.assertEqual(self.rows("openie.jsonl"), [{"id": "set-00000", "triples": [whole]}])

    def test_a_limit_takes_the_first_questions(self):
        rows = [hotpotqa(), {**hotpotqa(), "_id": "5b"}]
        _, questions = self.run_on(self.file("hotpot.json", rows), "--limit", "1")
        self.assertEqual([row["id"] for row in questions], ["5a"])

    def test_several_files_share_a_corpus(self):
        later = {**hotpotqa(), "_id": "5b", "context": [["Oslo", ["A city."]]], "supporting_facts": [["Oslo", 0]]}
        sources = [self.file("a.json", [hotpotqa()]) + "=train.jsonl", self.file("b.json", [later]) + "=questions.jsonl"]
        passages, [question] = self.run_on(*sources)
        self.assertEqual((len(passages), question["supporting"]), (3, ["set-00002"]))
        self.assertEqual([row["id"] for row in self.rows("train.jsonl")], ["5a"])

    def test_other_forms_are_refused_by_name(self):
        for row in ({"question": "Who?"}, {"question": "Who?", "paragraphs": []}):
            with self.assertRaisesRegex(SystemExit, "other.json: unknown form"):
                self.run_on(self.file("other.json", [row]))


if __name__ == "__main__":
    unittest.main()
