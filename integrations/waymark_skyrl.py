"""SkyRL over Waymark: searches of its own agent loop, and a generator over `POST /v1/rollouts`.

Without any of this file, SkyRL-gym's environment `search` asks Waymark with `search_url=http://waymark:8080/retrieve`.
`WaymarkSearchEnv` adds the key. `WaymarkGenerator` replaces SkyRL's generator, where turns run in Waymark as well:

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return WaymarkGenerator("http://waymark:8080", model="my-policy")

SkyRL updates the weights of its own engines only: those of the policy are published with `POST /v1/policies`. Needs
SkyRL-gym 0.4, and SkyRL 0.4 for the generator.
"""

from skyrl_gym.envs import register
from skyrl_gym.envs.search.env import SearchEnv, SearchEnvConfig
from waymark_rollouts import Client, accepted_answers, check_temperature, logprobs, question_text

try:
    from skyrl.train.generators.base import GeneratorInterface
except ModuleNotFoundError:
    # Environments run where the trainer is not installed.
    GeneratorInterface = object


class WaymarkSearchEnv(SearchEnv):
    """SkyRL-gym's search environment, with the key in the variable WAYMARK_API_KEY.

    SkyRL configures its own environments only: without `search_url` the server is that of the variable WAYMARK_URL.
    """

    def __init__(self, env_config=None, extras=None):
        if not hasattr(env_config, "search_url"):
            env_config = SearchEnvConfig(search_url=f"{Client().url}/retrieve")
        super().__init__(env_config, extras or {})
        key = Client(self.tool_group.base_url).headers().get("authorization")
        if key:
            # SkyRL shares one session per server, for all environments of the process.
            self.tool_group.session.headers["authorization"] = key


register(id="waymark_search", entry_point="waymark_skyrl:WaymarkSearchEnv")


class WaymarkGenerator(GeneratorInterface):
    """SkyRL's generator whose turns and searches run in Waymark. `options` are fields of the request."""

    def __init__(self, url=None, model=None, reward="exact_match", **options):
        self.client = Client(url)
        self.request = {"reward": reward, **options, **({"model": model} if model else {})}

    async def generate(self, input_batch):
        extras = input_batch["env_extras"] or [{}] * len(input_batch["prompts"])
        questions = [
            {"question": question_text(prompt), "answers": accepted_answers(extra.get("reward_spec"))}
            for prompt, extra in zip(input_batch["prompts"], extras, strict=True)
        ]
        wanted = input_batch.get("sampling_params") or {}
        check_temperature(wanted.get("temperature", 1))
        sampling = {key: wanted[key] for key in ("temperature", "top_p") if key in wanted}
        # SkyRL and vLLM write -1 for "all".
        sampling["top_k"] = max(0, wanted.get("top_k", 0))
        batch = await self.client.play_async(questions, **self.request, **sampling)
        ended = batch.trajectories
        return {
            "prompt_token_ids": [one["prompt_ids"] for one in ended],
            "response_ids": [one["response_ids"] for one in ended],
            "rewards": [one["reward"] for one in ended],
            "loss_masks": [one["response_mask"] for one in ended],
            "stop_reasons": [one["stop_reason"] for one in ended],
            "rollout_logprobs": [logprobs(one) for one in ended],
            "rollout_metrics": metrics(ended),
            "trajectory_ids": input_batch.get("trajectory_ids"),
            "trajectory_generation_times": [one["metrics"]["seconds"] for one in ended],
            "rollout_expert_indices": None,
            "is_last_step": None,
            "env_metrics": [one["metrics"] for one in ended],
        }


def metrics(trajectories):
    """Returns the means that SkyRL logs."""
    names = ("em", "f1", "searches", "cost")
    return {f"waymark/avg_{name}": sum(one["metrics"][name] for one in trajectories) / len(trajectories) for name in names}
