"""TRL's `rollout_func`: what TRL asks of it, over a real server, and a step of `GRPOTrainer`."""

import os
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
from waymark_rollouts import Client  # noqa: E402
from waymark_trl import AdapterPublisher, RolloutFunction  # noqa: E402

ANSWERS = {MONA_LISA["question"]: MONA_LISA["answers"], "Who wrote Faust?": ["Goethe"]}
TRAINER = SimpleNamespace(args=SimpleNamespace(temperature=1.0), state=SimpleNamespace(global_step=4))


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
        trainer = SimpleNamespace(args=SimpleNamespace(temperature=0.7), state=TRAINER.state)
        with self.assertRaisesRegex(ValueError, "temperature 0.7"):
            RolloutFunction(Client(self.url), ANSWERS, "search-r1")([MONA_LISA["question"]], trainer)


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
            accelerator=SimpleNamespace(unwrap_model=lambda model: model), model=model, state=SimpleNamespace(global_step=0),
            args=TRAINER.args,
        )  # fmt: skip
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
