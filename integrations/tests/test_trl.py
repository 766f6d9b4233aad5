"""TRL's `rollout_func`: what TRL asks of it, over a real server, and a step of `GRPOTrainer`."""

import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from servers import FOLDER, MONA_LISA, WithServer, random_model  # noqa: E402

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from waymark_rollouts import Batch, Client  # noqa: E402
from waymark_trl import AdapterPublisher, RolloutFunction  # noqa: E402

ANSWERS = {MONA_LISA["question"]: MONA_LISA["answers"], "Who wrote Faust?": ["Goethe"]}


def accelerator(rank=0, size=1, wait=lambda: None):
    """Returns what the adapter uses of Accelerate's `Accelerator`, in process `rank` of `size`."""
    return SimpleNamespace(
        process_index=rank, num_processes=size, is_main_process=rank == 0, wait_for_everyone=wait,
        unwrap_model=lambda model: model,
    )  # fmt: skip


TRAINER = SimpleNamespace(
    args=SimpleNamespace(temperature=1.0), state=SimpleNamespace(global_step=4), accelerator=accelerator()
)


def differences(model, batch):
    """Returns the differences between the log-probabilities of a batch and those of a model."""
    found = []
    for one in batch.trajectories:
        ids = torch.tensor([one["prompt_ids"] + one["response_ids"]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(one["prompt_ids"]) - 1 : -1].float()
        ours = logits.log_softmax(-1).gather(1, torch.tensor(one["response_ids"])[:, None])[:, 0]
        told = zip(ours.tolist(), one["response_logprobs"], one["response_mask"], strict=True)
        found += [abs(own - value) for own, value, learned in told if learned]
    return found


class Mock(WithServer):
    """Over the mock, whose answer is that of the first question."""

    def test_each_prompt_is_played_as_often_as_it_stands_there(self):
        seen = []
        observe = lambda _, batch: seen.append(batch)  # noqa: E731
        rollouts = RolloutFunction(Client(self.url), ANSWERS, "search-r1", observe, reward="exact_match")
        first, second = ANSWERS
        rows = rollouts([first, first, [{"role": "user", "content": second}]] + [second], TRAINER)
        self.assertEqual((rows["reward"], rows["em"], len(seen)), ([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], 1))
        for prompt, ids, mask, logprobs in zip(rows["prompt_ids"], rows["completion_ids"], rows["env_mask"], rows["logprobs"]):
            self.assertIn(b"Question: ", bytes(prompt))
            self.assertEqual((len(mask), len(logprobs)), (len(ids), len(ids)))
            learned = bytes(token for token, on in zip(ids, mask) if on)
            self.assertTrue(learned.startswith(b"<think>") and learned.endswith(b"</answer>"))
            self.assertNotIn(b"Rhine", learned)

    def test_other_temperatures_are_refused(self):
        trainer = SimpleNamespace(args=SimpleNamespace(temperature=0.7), state=TRAINER.state, accelerator=accelerator())
        with self.assertRaisesRegex(ValueError, "temperature 0.7"):
            RolloutFunction(Client(self.url), ANSWERS, "search-r1")([MONA_LISA["question"]], trainer)


class Processes(unittest.TestCase):
    """Two processes of a trainer, with a client that only notes what it is asked for."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        (self.root / "policy.toml").write_text('name = "start"\nprotocol = "search-r1"\n')
        self.calls = []
        self.asked = []
        call = lambda method, path, _=None: self.calls.append((method, path))  # noqa: E731
        self.client = SimpleNamespace(call=call, play_each=self.play_each)

    def play_each(self, questions, **options):
        self.asked.append((options["model"], options["seed"]))
        return Batch("rollout-1", options["model"], "fp_1", [])

    def rollouts(self, rank):
        """Returns the function of a process, and its trainer."""
        publisher = AdapterPublisher(self.client, self.root, self.root, "base")
        model = SimpleNamespace(save_pretrained=lambda folder: folder.mkdir())
        wait = lambda: self.calls.append(("waits", rank))  # noqa: E731
        trainer = SimpleNamespace(
            accelerator=accelerator(rank, 2, wait), model=model, state=SimpleNamespace(global_step=0), args=TRAINER.args
        )
        return RolloutFunction(self.client, ANSWERS, publisher), trainer

    def test_each_process_plays_trajectories_of_its_own_with_what_the_first_one_publishes(self):
        processes = [self.rollouts(rank) for rank in range(2)]
        for step in range(2):
            for rollouts, trainer in processes:
                trainer.state.global_step = step
                rollouts([MONA_LISA["question"]], trainer)
        self.assertEqual(self.asked, [("trl-0", 0), ("trl-0", 1), ("trl-1", 2), ("trl-1", 3)])
        waits = [("waits", 0), ("waits", 1)]
        first = [("POST", "/v1/policies"), *waits]
        second = [("POST", "/v1/policies"), ("DELETE", "/v1/policies/trl-0"), *waits]
        self.assertEqual(self.calls, first + second)

    def test_a_step_is_published_once(self):
        rollouts, trainer = self.rollouts(0)
        for _ in range(2):
            rollouts([MONA_LISA["question"]], trainer)
        self.assertEqual(self.calls, [("POST", "/v1/policies"), ("waits", 0)])


class Step(WithServer):
    """`GRPOTrainer` trains the random model for one step on trajectories of the same model."""

    flags = ("--model", random_model(), "--device", "cpu")

    def test_a_step_of_the_trainer(self):
        compared = []
        compare = lambda trainer, batch: compared.extend(differences(trainer.model, batch))  # noqa: E731
        rollouts = RolloutFunction(Client(self.url), ANSWERS, "search-r1", compare, reward="exact_match", max_tokens=40)
        model = AutoModelForCausalLM.from_pretrained(random_model(), dtype=torch.float32)
        before = model.model.embed_tokens.weight.detach().clone()
        options = GRPOConfig(
            output_dir=str(random_model() / "trl"), max_steps=1, num_generations=2, per_device_train_batch_size=2, beta=0.0,
            learning_rate=1e-2, report_to=[], use_cpu=True, bf16=False, save_strategy="no", lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = GRPOTrainer(
            # The answers of random weights earn nothing: the number of `e` stands in for a reward.
            model=model, reward_funcs=lambda completion_ids, **_: [float(ids.count(101)) + ids[0] for ids in completion_ids],
            args=options, rollout_func=rollouts, train_dataset=Dataset.from_dict({"prompt": list(ANSWERS)}),
            processing_class=AutoTokenizer.from_pretrained(random_model()),
        )  # fmt: skip
        trainer.train()
        self.assertGreater(len(compared), 20)
        self.assertLess(max(compared), 1e-3)
        self.assertGreater((model.model.embed_tokens.weight - before).abs().max().item(), 0)


class Adapters(WithServer):
    """A server over the base model, which gets each step's adapter."""

    root = Path(FOLDER.name) / "policies"
    flags = ("--model", random_model(), "--device", "cpu", "--policy-root", root)

    @classmethod
    def setUpClass(cls):
        cls.root.mkdir()
        super().setUpClass()

    def test_each_steps_adapter_is_served_in_place_of_the_one_before(self):
        base = AutoModelForCausalLM.from_pretrained(random_model(), dtype=torch.float32)
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        model = get_peft_model(base, lora)
        settings = 'name = "start"\nbase = "elsewhere"\nprotocol = "search-r1"\n[training]\nsteps = 3\n'
        (self.root / "policy.toml").write_text(settings)
        client = Client(self.url)
        publisher = AdapterPublisher(client, self.root, self.root, random_model())
        trainer = SimpleNamespace(
            accelerator=accelerator(), model=model, state=SimpleNamespace(global_step=0), args=TRAINER.args
        )
        batches = []
        observe = lambda _, batch: batches.append(batch)  # noqa: E731
        rollouts = RolloutFunction(client, ANSWERS, publisher, observe, max_tokens=40)
        for step in range(2):
            trainer.state.global_step = step
            rollouts([MONA_LISA["question"]], trainer)
            self.assertLess(max(differences(model, batches[-1])), 1e-3)
            with torch.no_grad():
                for name, weights in model.named_parameters():
                    if "lora_B" in name:
                        weights.mul_(-1)
        self.assertEqual([batch.model for batch in batches], ["trl-0", "trl-1"])
        self.assertNotEqual(batches[0].generation, batches[1].generation)
        served = [policy["name"] for policy in client.call("GET", "/v1/policies")["data"]]
        self.assertTrue("trl-1" in served and "trl-0" not in served, served)


if __name__ == "__main__":
    unittest.main()
