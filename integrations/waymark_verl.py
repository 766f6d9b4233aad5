"""verl's agent loop over `POST /v1/rollouts`. Needs verl 0.9.

A file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names, with this folder in PYTHONPATH of the workers:

    - name: waymark
      _target_: waymark_verl.WaymarkAgentLoop
      url: http://waymark:8080
      model: my-policy
      reward: exact_match

and `actor_rollout_ref.rollout.agent.default_agent_loop=waymark`. The question is the last message of `raw_prompt`, its
accepted answers are `reward_model.ground_truth`, as in Search-R1's data. verl updates the weights of its own engine only:
those of the policy are published with `POST /v1/policies`, and `extra_fields` says which `generation` played.
"""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from waymark_rollouts import Client, accepted_answers, check_temperature, logprobs, question_text


@register("waymark")
class WaymarkAgentLoop(AgentLoopBase):
    """Agent loop whose turns and searches run in Waymark.

    `url` and `model` default to the variable WAYMARK_URL and the server's first policy. `options` are further fields of
    the request.
    """

    def __init__(self, *args, url=None, model=None, reward="exact_match", options=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.client = Client(url)
        self.request = {"reward": reward, **(options or {}), **({"model": model} if model else {})}

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        temperature = sampling_params.get("temperature", 1.0)
        check_temperature(temperature)
        sampling = {
            "temperature": temperature,
            "top_p": sampling_params.get("top_p", 1.0),
            # verl and vLLM write -1 for "all".
            "top_k": max(0, sampling_params.get("top_k", 0)),
        }
        answers = accepted_answers((kwargs.get("reward_model") or {}).get("ground_truth"))
        question = {"question": question_text(list(kwargs["raw_prompt"])), "answers": answers}
        batch = await self.client.play_async([question], **self.request, **sampling)
        one = batch.trajectories[0]
        limit = self.rollout_config.prompt_length
        if len(one["prompt_ids"]) > limit:
            # verl cuts prompts, which would leave log-probabilities of another context.
            raise ValueError(f"the prompt has {len(one['prompt_ids'])} tokens; set data.max_prompt_length above {limit}")
        length = self.rollout_config.response_length
        return AgentLoopOutput(
            prompt_ids=one["prompt_ids"],
            response_ids=one["response_ids"][:length],
            response_mask=one["response_mask"][:length],
            response_logprobs=logprobs(one)[:length],
            reward_score=one["reward"],
            # The question, the policy's turns, and the evidence between them.
            num_turns=2 * one["num_turns"],
            metrics=AgentLoopMetrics(generate_sequences=one["metrics"]["seconds"]),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "waymark_generation": batch.generation,
                "waymark_answer": one["answer"],
                "waymark_stop_reason": one["stop_reason"],
            },
        )
