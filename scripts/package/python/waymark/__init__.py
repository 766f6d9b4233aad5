"""Client of a Waymark server: episodes of agentic search as typed events, and trajectories for trainers.

The other routes are OpenAI's: use the `openai` package with `base_url="http://127.0.0.1:8080/v1"`.
"""

from .client import Client, WaymarkError
from .events import Citation, Event, Hit, Passage, Usage
from .rollouts import Question, RolloutBatch, Trajectory

__all__ = [
    "Citation",
    "Client",
    "Event",
    "Hit",
    "Passage",
    "Question",
    "RolloutBatch",
    "Trajectory",
    "Usage",
    "WaymarkError",
]
