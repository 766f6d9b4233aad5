"""The client: its errors, and batches of a real server."""

import asyncio
import os
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from servers import CANCELED, KEY, MONA_LISA, RUNNING, Told, WithServer, random_model

from waymark_rollouts import Canceled, Cancel, Client, RolloutError, accepted_answers, check_temperature, question_text
from waymark_trl import AdapterPublisher

END = ("finished", {"id": "rollout-1", "model": "m", "generation": "fp_1", "trajectories": 1, "failures": 0})


def one(question, sample):
    return ("trajectory", {"question": question, "sample": sample})


class Errors(unittest.TestCase):
    """Errors name what failed."""

    def fails(self, *answers, **settings):
        told = Told(*answers)
        with self.assertRaises(RolloutError) as caught:
            Client(told.url, **settings).play([MONA_LISA])
        told.close()
        return caught.exception

    def test_a_refusal_has_the_servers_code_and_message(self):
        error = self.fails((400, '{"error": {"code": "invalid_value", "message": "`n` must be at least 1"}}'))
        self.assertEqual((error.status, error.code), (400, "invalid_value"))
        self.assertIn("`n` must be at least 1", str(error))

    def test_an_answer_of_a_proxy_is_shown(self):
        self.assertIn("502 Bad Gateway: <html>", str(self.fails((502, "<html>no upstream</html>"))))

    def test_a_failed_episode_fails_the_batch(self):
        failure = {"question": 0, "sample": 3, "code": "overloaded", "message": "no room"}
        self.assertIn("(question 0, sample 3): overloaded: no room", str(self.fails((200, [one(0, 0), ("failure", failure)]))))

    def test_a_stream_that_is_cut_off_is_no_batch(self):
        self.assertIn("ended before its event `finished`", str(self.fails((200, [one(0, 0)]))))

    def test_an_error_in_the_stream_is_raised(self):
        error = {"error": {"code": "internal", "message": "the reward could not be computed"}}
        self.assertIn("the reward could not be computed", str(self.fails((200, [("error", error)]))))

    def test_a_busy_server_is_asked_again_until_patience_ends(self):
        busy = (503, '{"error": {"code": "queue_full", "message": "busy"}}')
        self.assertEqual(self.fails(busy, patience=0).code, "queue_full")
        told = Told(busy, (200, [one(0, 0), END]))
        self.assertEqual(len(Client(told.url).play([MONA_LISA]).trajectories), 1)
        told.close()

    def test_a_server_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(RolloutError, "no connection to http://127.0.0.1:1"):
            Client("http://127.0.0.1:1").play([MONA_LISA])
        with self.assertRaisesRegex(ValueError, "expected http://HOST:PORT"):
            Client("localhost")


class Requests(unittest.TestCase):
    """Bodies and headers of requests."""

    def test_equal_questions_are_one_question_with_samples(self):
        told = Told((200, [one(1, 1), one(0, 1), one(1, 0), one(0, 0), END]))
        batch = Client(told.url).play_each([{"question": "a"}] * 2 + [{"question": "b"}] * 2, seed=7)
        self.assertEqual([(t["question"], t["sample"]) for t in batch.trajectories], [(0, 0), (0, 1), (1, 0), (1, 1)])
        body = told.requests[0][2]
        self.assertEqual(body, {"questions": [{"question": "a"}, {"question": "b"}], "n": 2, "seed": 7, "stream": True})
        told.close()

    def test_uneven_groups_and_long_lists_are_split(self):
        told = Told((200, [one(0, 0), one(1, 0), one(2, 0), END]), (200, [END]), (200, [END]))
        Client(told.url).play_each([{"question": "a"}] * 2 + [{"question": "b"}])
        self.assertEqual((len(told.requests[0][2]["questions"]), told.requests[0][2]["n"]), (3, 1))
        Client(told.url).play_each([{"question": str(at)} for at in range(1500)])
        self.assertEqual([len(body["questions"]) for _, _, body in told.requests[1:]], [1024, 476])
        told.close()

    def test_the_key_is_in_a_variable(self):
        told = Told((200, [END]), (200, [END]))
        with mock.patch.dict(os.environ, {KEY: "secret", "OTHER": "other"}):
            Client(told.url).play([MONA_LISA])
            Client(told.url, key_variable="OTHER").play([MONA_LISA])
        sent = [{name.lower(): value for name, value in headers.items()}["authorization"] for _, headers, _ in told.requests]
        self.assertEqual(sent, ["Bearer secret", "Bearer other"])
        told.close()

    def test_fields_of_data_sets(self):
        self.assertEqual(accepted_answers({"target": ["a", "b"]}), ["a", "b"])
        self.assertEqual(accepted_answers({"ground_truth": {"target": ("a",)}}), ["a"])
        self.assertEqual((accepted_answers("a"), accepted_answers(None)), (["a"], []))
        talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
        self.assertEqual((question_text(talk), question_text("q")), ("q", "q"))
        with self.assertRaisesRegex(ValueError, "no text of a user"):
            question_text(talk[:1])
        check_temperature(1.0)
        with self.assertRaisesRegex(ValueError, "temperature 0.7"):
            check_temperature(0.7)


class Mock(WithServer):
    """A server with the mock, whose steps take 20 ms, so that its episodes of 670 tokens take a while."""

    flags = ("--mock", "--mock-step-ms", "20")

    def test_batches_and_their_cancelation(self):
        client = Client(self.url)
        batch = client.play([MONA_LISA], model="search-r1", n=2, reward="exact_match")
        self.assertEqual([t["reward"] for t in batch.trajectories], [1.0, 1.0])
        self.assertEqual((batch.model, batch.generation[:3]), ("search-r1", "fp_"))

        cancel, canceled = Cancel(), []

        def leave_soon():
            self.until(RUNNING, 3)
            canceled.append(time.monotonic())
            cancel()

        leaving = threading.Thread(target=leave_soon)
        leaving.start()
        with self.assertRaises(Canceled):
            client.play([MONA_LISA], cancel, model="search-r1", n=3)
        ended = time.monotonic()
        leaving.join()
        # Far from the 13 s that the episodes take.
        self.assertLess(ended - canceled[0], 8)
        self.until(CANCELED, 3)
        self.until(RUNNING, 0)

        async def leave():
            playing = asyncio.create_task(client.play_async([MONA_LISA] * 2, model="search-r1"))
            await asyncio.to_thread(self.until, RUNNING, 2)
            playing.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await playing

        asyncio.run(leave())
        self.until(CANCELED, 5)
        self.until(RUNNING, 0)
        with self.assertRaises(Canceled):
            client.play([MONA_LISA], cancel)

    def test_an_unknown_policy_is_refused_by_name(self):
        with self.assertRaisesRegex(RolloutError, "404 model_not_found"):
            Client(self.url).play([MONA_LISA], model="nobody")


class Publisher(unittest.TestCase):
    """TRL's publisher of adapters, without TRL."""

    def test_a_step_is_published_once_and_without_the_fingerprint_of_other_weights(self):
        with tempfile.TemporaryDirectory() as root:
            policy = Path(root) / "policy"
            policy.mkdir()
            settings = 'name = "a"\nprotocol = "routerag"\n\n[budget]\nturns = 4\n\n[fingerprint]\nids = [1, 2]\n'
            (policy / "policy.toml").write_text(settings)
            client, model = mock.Mock(), mock.Mock()
            model.save_pretrained = lambda folder: folder.mkdir()
            publisher = AdapterPublisher(client, root, policy, "smollm2")
            names = [publisher.publish(model, step) for step in (1, 1, 2)]
            self.assertEqual(names, ["trl-1", "trl-1", "trl-2"])
            calls = [call.args[:2] for call in client.call.call_args_list]
            self.assertEqual(
                calls, [("POST", "/v1/policies"), ("POST", "/v1/policies"), ("DELETE", "/v1/policies/trl-1")]
            )
            served = (Path(root) / "trl-2" / "policy.toml").read_text()
            self.assertIn('protocol = "routerag"', served)
            self.assertNotIn("fingerprint", served)


class Random(WithServer):
    """A server with random weights, whose log-probabilities are numbers."""

    flags = ("--model", random_model(), "--device", "cpu")

    def test_the_same_seed_gives_the_same_trajectory(self):
        options = {"model": "search-r1", "max_tokens": 40, "seed": 3, "reward": "exact_match"}
        first, second = (Client(self.url).play([MONA_LISA], **options).trajectories[0] for _ in range(2))
        self.assertEqual(first["response_ids"], second["response_ids"])
        self.assertEqual(set(first["response_mask"]), {0, 1})
        for learned, value in zip(first["response_mask"], first["response_logprobs"], strict=True):
            # Tokens that were withdrawn from the policy's view have log-probabilities too, but are not learned.
            self.assertTrue(-20 < value < 0 if learned else value is None or value < 0)


if __name__ == "__main__":
    unittest.main()
