"""verl's agent loop, made and padded as verl's worker does, over real servers."""

import asyncio
import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from servers import CANCELED, MONA_LISA, RUNNING, WithServer, random_model

import hydra
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker, DictConfigWrap, _agent_loop_registry
from waymark_rollouts import Client, logprobs

ROW = {
    "raw_prompt": [{"role": "user", "content": MONA_LISA["question"]}],
    # As in Search-R1's parquet files.
    "reward_model": {"style": "rule", "ground_truth": {"target": MONA_LISA["answers"]}},
    "data_source": "demo",
}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def made(url, prompt_length=1024, response_length=512, **settings):
    """Makes the loop from its entry in a file of agent loops, as the worker does. Returns it with the configuration."""
    entry = {"name": "waymark", "_target_": "waymark_verl.WaymarkAgentLoop", "url": url, "model": "search-r1", **settings}
    rollout = {"prompt_length": prompt_length, "response_length": response_length}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loops.yaml"
        path.write_text(OmegaConf.to_yaml([entry]))
        (loaded,) = OmegaConf.load(path)
    tokenizer = AutoTokenizer.from_pretrained(random_model())
    tokenizer.pad_token = tokenizer.eos_token
    loop = hydra.utils.instantiate(
        config=loaded, trainer_config=DictConfigWrap(config), server_manager=None, tokenizer=tokenizer, processor=None,
        hf_model_type="llama", dataset_cls=None, data_config=DictConfigWrap(config.data), tools=None,
    )  # fmt: skip
    return loop, config


def run(url, sampling=None, **settings):
    """Runs a loop on a row of a data set."""

    async def played():
        loop, _ = made(url, **settings)
        return await loop.run(dict(SAMPLING, **(sampling or {})), **ROW)

    return asyncio.run(played())


class Mock(WithServer):
    """Over the mock, whose episodes take 7 s."""

    flags = ("--mock", "--mock-step-ms", "10")

    def test_the_output_of_a_rollout(self):
        output = run(self.url)
        self.assertIsInstance(output, AgentLoopOutput)
        one = Client(self.url).play([MONA_LISA], model="search-r1").trajectories[0]
        self.assertEqual((output.prompt_ids, output.response_mask), (one["prompt_ids"], one["response_mask"][:512]))
        self.assertEqual(output.response_ids, one["response_ids"][:512])
        self.assertEqual((output.reward_score, output.num_turns), (1.0, 4))
        self.assertGreater(output.metrics.generate_sequences, 0)
        self.assertEqual(output.extra_fields["waymark_generation"][:3], "fp_")
        self.assertEqual(output.extra_fields["waymark_answer"], MONA_LISA["answers"][0])
        self.assertIn("waymark", _agent_loop_registry)

    def test_a_prompt_that_verl_would_cut_is_refused(self):
        with self.assertRaisesRegex(ValueError, "above 100"):
            run(self.url, prompt_length=100)

    def test_other_temperatures_are_refused(self):
        with self.assertRaisesRegex(ValueError, "temperature 0.7"):
            run(self.url, sampling={"temperature": 0.7})
        self.assertEqual(run(self.url, sampling={"temperature": 0}).reward_score, 1.0)

    def test_a_canceled_task_cancels_the_episode(self):
        async def leave():
            loop, _ = made(self.url)
            playing = asyncio.create_task(loop.run(SAMPLING, **ROW))
            await asyncio.to_thread(self.until, RUNNING, 1)
            playing.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await playing

        asyncio.run(leave())
        self.until(CANCELED, 1)


class Random(WithServer):
    """Over random weights."""

    flags = ("--model", random_model(), "--device", "cpu")

    def test_verls_worker_pads_the_rollout(self):
        options = {"max_tokens": 40, "seed": 3}

        async def padded():
            loop, config = made(self.url, response_length=64, options=options)
            output = await loop.run(SAMPLING, **ROW)
            # A worker without its engine: Ray and vLLM need a GPU.
            worker = AgentLoopWorker.__new__(AgentLoopWorker)
            vars(worker).update(
                config=config, rollout_config=config.actor_rollout_ref.rollout, tokenizer=loop.tokenizer, processor=None,
                reward_loop_worker_handles=None, distillation_enabled=False, mm_processor_kwargs={},
            )  # fmt: skip
            return output, await worker._agent_loop_postprocess(output, False, **ROW)

        output, rows = asyncio.run(padded())
        one = Client(self.url).play([MONA_LISA], model="search-r1", temperature=1, **options).trajectories[0]
        count = len(one["response_ids"])
        self.assertEqual(output.response_logprobs, logprobs(one))
        self.assertEqual(rows.response_ids[0].tolist()[:count], one["response_ids"])
        self.assertEqual(rows.response_mask[0].tolist(), one["response_mask"] + [0] * (64 - count))
        self.assertEqual(rows.attention_mask.sum().item(), len(one["prompt_ids"]) + count)
        torch.testing.assert_close(rows.response_logprobs[0][:count], torch.tensor(logprobs(one)))
        self.assertLess(rows.response_logprobs.min().item(), -1)
        flat = output.as_dict()
        self.assertEqual((flat["rm_scores"].sum().item(), flat["response_mask"].tolist()), (0.0, one["response_mask"]))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    unittest.main()
