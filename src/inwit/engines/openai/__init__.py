"""Models behind OpenAI-compatible endpoints: sampled from, never trained."""

from inwit.engines.openai.answers import KEYS, Reply
from inwit.engines.openai.endpoint import Address, ChatEndpoint, OpenAISettings
from inwit.engines.openai.faults import BudgetSpent, EndpointError, Refused, Unanswered

__all__ = [
    "KEYS",
    "Address",
    "BudgetSpent",
    "ChatEndpoint",
    "EndpointError",
    "OpenAISettings",
    "Refused",
    "Reply",
    "Unanswered",
]
