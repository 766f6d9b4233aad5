"""SkyRL-gym's search environment, unchanged and with a key, and SkyRL's generator, over real servers."""

import asyncio
import json
import os
import unittest
from unittest import mock

from servers import KEY, MONA_LISA, WithServer, random_model

import skyrl_gym
from skyrl_gym.envs.search.env import SearchEnvConfig
from waymark_rollouts import Client, RolloutError, logprobs
from waymark_skyrl import WaymarkGenerator

EXTRAS = {"reward_spec": {"ground_truth": {"target": ["Leonardo da Vinci"]}}}
PROMPT = [{"role": "user", "content": MONA_LISA["question"]}]


class Search(WithServer):
    """Environments whose turns are sampled by SkyRL."""

    def test_the_environment_of_skyrl_gym_searches_here(self):
        config = SearchEnvConfig(search_url=f"{self.url}/retrieve", topk=2)
        env = skyrl_gym.make("search", env_config=config, extras={**EXTRAS, "max_turns": 3})
        prompt, _ = env.init(PROMPT)
        self.assertEqual(prompt, PROMPT)
        step = env.step("<think>Who?</think><search> Mona Lisa Leonardo </search>")
        self.assertEqual((step["done"], step["reward"], step["metadata"]["tool_input"]), (False, 0, [" Mona Lisa Leonardo "]))
        said = step["observations"][0]["content"]
        found = json.loads(said.removeprefix("\n<information>").removesuffix("</information>\n"))["result"]
        asked = {"queries": ["Mona Lisa Leonardo"], "topk": 2, "return_scores": True}
        documents = Client(self.url).call("POST", "/retrieve", asked)["result"][0]
        self.assertEqual(found, "".join(f"Doc {at}: {one['document']['contents']}\n" for at, one in enumerate(documents, 1)))
        last = env.step("<answer>Leonardo da Vinci</answer>")
        self.assertEqual((last["done"], last["reward"], last["observations"]), (True, 1.0, []))


class Keys(WithServer):
    """A server with a key."""

    @classmethod
    def setUpClass(cls):
        with mock.patch.dict(os.environ, {KEY: "a-key-of-these-tests-only"}):
            super().setUpClass()

    def search(self):
        with mock.patch.dict(os.environ, {"WAYMARK_URL": self.url}):
            # As SkyRL makes environments that it does not know.
            env = skyrl_gym.make("waymark_search", env_config={}, extras=EXTRAS)
        env.init(PROMPT)
        return env.step("<search>Louvre</search>")["observations"][0]["content"]

    def test_the_key_is_sent(self):
        self.assertIn("401", self.search())
        with mock.patch.dict(os.environ, {KEY: "a-key-of-these-tests-only"}):
            self.assertIn("Doc 1: ", self.search())

    def test_the_generator_names_what_was_refused(self):
        batch = {"prompts": [PROMPT], "env_extras": [EXTRAS]}
        with self.assertRaisesRegex(RolloutError, "401"):
            asyncio.run(WaymarkGenerator(self.url).generate(batch))


class Generator(WithServer):
    """The generator, over random weights."""

    flags = ("--model", random_model(), "--device", "cpu")

    def test_its_output_is_what_skyrl_validates(self):
        other = {"reward_spec": {"ground_truth": {"target": ["Goethe"]}}}
        faust = [{"role": "user", "content": "Who wrote Faust?"}]
        batch = {
            "prompts": [PROMPT, PROMPT, faust, faust], "env_classes": ["search"] * 4,
            "env_extras": [EXTRAS, EXTRAS, other, other], "sampling_params": {"temperature": 1.0, "top_p": 1.0, "top_k": -1},
            "trajectory_ids": None, "batch_metadata": None,
        }  # fmt: skip
        options = {"model": "search-r1", "max_tokens": 40, "seed": 3}
        output = asyncio.run(WaymarkGenerator(self.url, **options).generate(batch))
        questions = [{"question": "Who painted the Mona Lisa?"}, {"question": "Who wrote Faust?"}]
        expected = Client(self.url).play(questions, n=2, **options).trajectories
        self.assertEqual(output["response_ids"], [one["response_ids"] for one in expected])
        self.assertEqual(output["loss_masks"], [one["response_mask"] for one in expected])
        self.assertEqual(output["rollout_logprobs"], [logprobs(one) for one in expected])
        self.assertEqual((output["rewards"], output["stop_reasons"]), ([0.0] * 4, ["length"] * 4))
        self.assertEqual(output["rollout_metrics"]["waymark/avg_em"], 0.0)
        try:
            from skyrl.train.generators.base import GeneratorInterface, GeneratorOutput
            from skyrl.train.utils.trainer_utils import validate_generator_output
        except ModuleNotFoundError as missing:
            self.skipTest(f"the trainer is not installed here: {missing}")
        self.assertTrue(issubclass(WaymarkGenerator, GeneratorInterface))
        self.assertLessEqual(set(output), set(GeneratorOutput.__annotations__))
        validate_generator_output(4, output)


if __name__ == "__main__":
    unittest.main()
