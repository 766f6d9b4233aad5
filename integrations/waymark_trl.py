"""`rollout_func` of TRL's `GRPOTrainer` over `POST /v1/rollouts`.

    client = Client("http://127.0.0.1:8080")
    answers = {"Who painted the Mona Lisa?": ["Leonardo da Vinci"]}
    publisher = AdapterPublisher(client, root="policies", policy="models/policies/routerag-smollm2-135m/sft", base="/models/smollm2")
    rollouts = RolloutFunction(client, answers, publisher, reward="exact_match")
    GRPOTrainer(..., rollout_func=rollouts, reward_funcs=[lambda reward, **_: reward])

`Client` is that of `waymark_rollouts`. The server is started with the checkpoint (safetensors) that the trainer loads, and with
the folder below which its adapters are written:

    waymark serve --model /models/smollm2 --policy-root policies --index corpus.index

The prompts of the data set are questions, and `answers` maps each to its accepted answers. Needs TRL 1.16; `rollout_func`
is experimental there.
"""

import re
from pathlib import Path

from waymark_rollouts import check_temperature, logprobs, question_text


class AdapterPublisher:
    """Serves the adapter in training: writes it below the server's `--policy-root`, and loads it under a new name.

    `root` is that folder as this machine sees it. `policy` is a policy directory whose settings the served policies have,
    and `base` the checkpoint that its adapters are trained on, as the server sees it.
    """

    def __init__(self, client, root, policy, base):
        self.client = client
        self.root = Path(root)
        text = (Path(policy) / "policy.toml").read_text()
        # The fingerprint is that of other weights.
        self.settings = re.split(r"(?m)^\[+(?:training|fingerprint)", text)[0].splitlines()
        self.base = base
        self.served = None

    def publish(self, model, step, accelerator=None):
        """Serves the weights of `model`, in place of those of the step before. Returns the policy's name. Of several
        processes, the main one of `accelerator` does so, and the others wait for it."""
        name = f"trl-{step}"
        if name == self.served:
            # Batches of evaluation and of accumulated gradients are played with the weights of the same step.
            return name
        try:
            if accelerator is None or accelerator.is_main_process:
                self._load(model, name)
        finally:
            # Also after an error: the others would wait.
            if accelerator is not None:
                accelerator.wait_for_everyone()
        self.served = name
        return name

    def _load(self, model, name):
        folder = self.root / name
        model.save_pretrained(folder)
        kept = [line for line in self.settings if not line.startswith(("name =", "base =", "base_id =", "adapter ="))]
        (folder / "policy.toml").write_text("\n".join([f'name = "{name}"', f'base = "{self.base}"', *kept]) + "\n")
        self.client.call("POST", "/v1/policies", {"directory": name})
        if self.served:
            self.client.call("DELETE", f"/v1/policies/{self.served}")

    def __call__(self, trainer):
        accelerator = trainer.accelerator
        return self.publish(accelerator.unwrap_model(trainer.model), trainer.state.global_step, accelerator)


class RolloutFunction:
    """TRL's `rollout_func`: plays each prompt as often as it stands in the list.

    `policy` is the name of a policy, or a function of the trainer that returns one, such as an `AdapterPublisher`.
    `observe`, if given, is called with the trainer and each batch. `options` are fields of the request.
    """

    def __init__(self, client, answers, policy, observe=None, **options):
        self.client = client
        self.answers = answers
        self.policy = policy
        self.observe = observe
        self.options = options

    def __call__(self, prompts, trainer):
        check_temperature(trainer.args.temperature)
        model = self.policy(trainer) if callable(self.policy) else self.policy
        questions = [{"question": text, "answers": self.answers[text]} for text in map(question_text, prompts)]
        # Processes that play the same question need different trajectories.
        seed = trainer.state.global_step * trainer.accelerator.num_processes + trainer.accelerator.process_index
        options = {"model": model, "seed": seed, "temperature": 1, **self.options}
        batch = self.client.play_each(questions, **options)
        if self.observe:
            self.observe(trainer, batch)
        return columns(batch.trajectories)


def columns(trajectories):
    """Returns the fields that TRL requires, and those that its reward functions receive."""
    return {
        "prompt_ids": [one["prompt_ids"] for one in trajectories],
        "completion_ids": [one["response_ids"] for one in trajectories],
        "logprobs": [logprobs(one) for one in trajectories],
        "env_mask": [one["response_mask"] for one in trajectories],
        "reward": [one["reward"] for one in trajectories],
        "f1": [one["metrics"]["f1"] for one in trajectories],
        "em": [one["metrics"]["em"] for one in trajectories],
    }
