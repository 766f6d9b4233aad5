#!/usr/bin/env python3
"""Trains a policy with TRL's GRPO on trajectories of `POST /v1/rollouts`, and serves what it learns after each step.

    pip install torch trl peft
    scripts/conformance/trl_grpo.py target/release/waymark --model smollm2 --policy models/policies/routerag-smollm2-135m/sft

`--model` is a checkpoint (safetensors) that both TRL and Waymark load; `--policy` a policy over it, whose adapter is
trained on. Each step writes the adapter as PEFT does into a new directory below `--policy-root`, loads it with `POST
/v1/policies`, and plays the questions with it. The log-probabilities of every trajectory are computed again with the
model that TRL trains: the exit status is 1 if one differs by more than `--tolerance`, if no step changed the weights, or
if the last policy does not answer. `RolloutFunction` is what a trainer of one's own needs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts/bench"), str(ROOT / "integrations")]

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from local_services import Server  # noqa: E402
from peft import PeftModel  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from waymark_rollouts import Client  # noqa: E402
from waymark_trl import AdapterPublisher, RolloutFunction  # noqa: E402


class Observer:
    """Compares the log-probabilities of each batch with those of the model in training, and keeps a row for each step."""

    def __init__(self):
        self.rows = []

    def __call__(self, trainer, batch):
        step = trainer.state.global_step
        trajectories = batch.trajectories
        rewards = [round(one["reward"] + one["metrics"]["f1"], 3) for one in trajectories]
        worst, mean = self.compare(trainer.model, trajectories)
        self.rows.append((step, batch.generation, rewards, worst, mean))
        turns = [one["num_turns"] for one in trajectories]
        tokens = [sum(one["response_mask"]) for one in trajectories]
        print(f"step {step}: generation {batch.generation}, turns {turns}, tokens to learn {tokens}, rewards {rewards}, "
              f"log-probabilities within {worst:.5f} of TRL's, {mean:.6f} on average", flush=True)  # fmt: skip

    @staticmethod
    def compare(model, trajectories):
        """Largest and mean difference between the server's log-probabilities and those of the model in training."""
        differences = []
        training = model.training
        model.eval()
        for one in trajectories:
            ids = torch.tensor([one["prompt_ids"] + one["response_ids"]])
            with torch.no_grad():
                logits = model(ids).logits[0, len(one["prompt_ids"]) - 1 : -1].float()
            ours = logits.log_softmax(-1).gather(1, torch.tensor(one["response_ids"])[:, None])[:, 0]
            told = zip(ours.tolist(), one["response_logprobs"], one["response_mask"], strict=True)
            differences += [abs(own - value) for own, value, learned in told if learned]
        model.train(training)
        return max(differences), sum(differences) / len(differences)


def read_questions(path, count):
    """Returns the answers by question."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[:count]]
    return {row["question"]: row.get("answers") or [row["answer"]] for row in rows}


def train(arguments, rollouts, questions, folder):
    """Trains for some steps. Returns the trainer."""
    base = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, arguments.policy, is_trainable=True)
    options = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=arguments.steps, num_generations=arguments.generations,
        per_device_train_batch_size=arguments.generations, learning_rate=arguments.learning_rate, beta=0.0, temperature=1.0,
        lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=True, shuffle_dataset=False, seed=arguments.seed,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, reward_funcs=[lambda reward, **_: reward, lambda f1, **_: f1], args=options, rollout_func=rollouts,
        train_dataset=Dataset.from_dict({"prompt": list(questions)}), processing_class=AutoTokenizer.from_pretrained(arguments.model),
    )  # fmt: skip
    trainer.train()
    return trainer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", default="target/release/waymark")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, default=ROOT / "demo/corpus.jsonl")
    parser.add_argument("--questions", type=Path, default=ROOT / "demo/questions.jsonl")
    parser.add_argument("--embedder", default="mock")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--generations", type=int, default=4, help="trajectories per question")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--reward", type=json.loads, default='"exact_match"', help="in JSON; the F1 of the answer is added")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=24)
    arguments = parser.parse_args()
    questions = read_questions(arguments.questions, arguments.steps)
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        index, root = folder / "index", folder / "policies"
        shutil.copytree(arguments.policy, root / "start")
        build = [arguments.program, "index", "build", "--corpus", arguments.corpus, "--embedder", arguments.embedder, "--out", index]
        subprocess.run(build, check=True, stdout=sys.stderr)
        flags = ["--model", arguments.model, "--policy-root", root, "--index", index, "--embedder", arguments.embedder, "--state", "none"]
        server = Server(arguments.program, folder, "server", *flags, "--body-limit", "64MiB")
        try:
            # Episodes of a model on a CPU take minutes, and the server is asked for nothing else.
            client = Client(f"http://127.0.0.1:{server.port}", silence=3600)
            publisher = AdapterPublisher(client, root, arguments.policy, arguments.model.resolve())
            observer = Observer()
            rollouts = RolloutFunction(client, questions, publisher, observer, reward=arguments.reward, concurrency=4)
            trainer = train(arguments, rollouts, questions, folder)
            name = publisher.publish(trainer.accelerator.unwrap_model(trainer.model), arguments.steps)
            last = client.call("POST", "/v1/agent", {"model": name, "question": next(iter(questions))})
            print(f"{name} answers {last.get('answer')!r} after {last.get('turns')} turns")
        finally:
            server.stop()
    losses = [row for row in trainer.state.log_history if "grad_norm" in row]
    for row in losses:
        print({key: round(float(row[key]), 6) for key in ("loss", "reward", "reward_std", "grad_norm") if key in row})
    generations = {row[1] for row in observer.rows}
    worst = max(row[3] for row in observer.rows)
    if worst > arguments.tolerance:
        raise SystemExit(f"log-probabilities differ by {worst}, more than {arguments.tolerance}")
    if len(generations) != len(observer.rows) or not any(float(row["grad_norm"]) for row in losses):
        raise SystemExit("no step changed the weights: all rewards of each group are equal")
    if not last.get("answer"):
        raise SystemExit(f"the last policy gives no answer: {last}")


if __name__ == "__main__":
    main()
