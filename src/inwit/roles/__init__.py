"""Roles: prompts as text, the conditions they are built under, and their rendering to ids."""

from inwit.roles.conditions import CONDITIONS, CRITIC_SEES, View
from inwit.roles.prompt import Prompt, load_prompt
from inwit.roles.rendering import Renderer

__all__ = [
    "CONDITIONS",
    "CRITIC_SEES",
    "Prompt",
    "Renderer",
    "View",
    "load_prompt",
]
