"""The harness of verifiers in an `Env` of its own package, over a real server."""

import asyncio
import sys
import unittest
from pathlib import Path

from servers import CANCELED, MONA_LISA, WithServer, random_model

sys.path.insert(0, str(Path(__file__).parent))

import verifiers.v1 as vf  # noqa: E402
from waymark_rollouts import Client  # noqa: E402
from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # noqa: E402


def play(url, model, seconds=None, sampling=None, **harness):
    """Plays the first question of the test's taskset as a run of verifiers would. Returns the episode."""
    agent = {"harness": {"id": "waymark_verifiers", "url": url, **harness}, "runtime": {"type": "subprocess"}}
    if seconds:
        agent["timeout"] = {"rollout": seconds}
    env = load_environment(resolve_env_config({"taskset": {"id": "taskset"}, "agent": agent}))
    context = vf.ModelContext(model=model, client=vf.EvalClientConfig(), sampling=vf.types.SamplingConfig(**(sampling or {})))

    async def run():
        async with env.serving():
            return await env.run_episode(next(iter(env.taskset)), context)

    return asyncio.run(run())


class Mock(WithServer):
    """Over the mock, whose episodes take 7 s."""

    flags = ("--mock", "--mock-step-ms", "10")

    def test_the_trace_holds_tokens_masks_and_reward(self):
        episode = play(self.url, "search-r1")
        self.assertTrue(episode.ok, episode.errors)
        trace = episode.traces[0]
        self.assertTrue(trace.ok, trace.errors)
        self.assertEqual((trace.reward, trace.rewards["waymark"].score, trace.metrics["em"]), (1.0, 1.0, 1.0))
        self.assertEqual((trace.num_turns, trace.stop_condition), (2, "agent_completed"))
        self.assertEqual(trace.last_reply, MONA_LISA["answers"][0])
        self.assertEqual([message.role for message in trace.messages], ["user", "assistant", "user", "assistant"])
        self.assertEqual(trace.info["waymark"]["stop_reason"], "stop")

        one = Client(self.url).play([MONA_LISA], model="search-r1").trajectories[0]
        (branch,) = trace.branches
        self.assertEqual(branch.token_ids, one["prompt_ids"] + one["response_ids"])
        self.assertEqual(branch.sampled_mask, [False] * len(one["prompt_ids"]) + [on == 1 for on in one["response_mask"]])
        self.assertEqual(trace.num_output_tokens, sum(one["response_mask"]))
        self.assertIn("</search>", trace.messages[1].content)
        self.assertIn("Rhine", trace.messages[2].content)

    def test_the_task_may_compute_its_own_reward(self):
        trace = play(self.url, "search-r1", reward=None).traces[0]
        self.assertEqual((trace.reward, list(trace.rewards)), (0.0, []))

    def test_a_deadline_cancels_the_episode(self):
        episode = play(self.url, "search-r1", seconds=3)
        self.assertEqual(episode.traces[0].stop_condition, "agent_timeout")
        self.until(CANCELED, 1)

    def test_a_refusal_is_the_error_of_the_trace(self):
        trace = play(self.url, "nobody").traces[0]
        self.assertFalse(trace.ok)
        self.assertIn("404 model_not_found", trace.errors[0].message)


class Random(WithServer):
    """Over random weights."""

    flags = ("--model", random_model(), "--device", "cpu")

    def test_log_probabilities_stand_at_their_tokens(self):
        options = {"max_tokens": 40, "seed": 3}
        trace = play(self.url, "search-r1", options=options).traces[0]
        one = Client(self.url).play([MONA_LISA], model="search-r1", temperature=1, **options).trajectories[0]
        (branch,) = trace.branches
        self.assertEqual(branch.token_ids, one["prompt_ids"] + one["response_ids"])
        learned = zip(one["response_logprobs"], one["response_mask"], strict=True)
        expected = [0.0] * len(one["prompt_ids"]) + [value if on else 0.0 for value, on in learned]
        self.assertEqual(branch.logprobs, expected)
        self.assertTrue(trace.is_truncated)
        self.assertLess(min(branch.logprobs), -1)


if __name__ == "__main__":
    unittest.main()
