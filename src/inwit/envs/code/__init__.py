"""Programs, graded by running tests in a sandbox that does not trust them."""

from inwit.envs.code.env import Code, CodeSettings, result_of
from inwit.envs.code.programs import code_in, fenced
from inwit.envs.code.sandbox import Job, Kind, Limits, Outcome, Sandbox

__all__ = [
    "Code",
    "CodeSettings",
    "Job",
    "Kind",
    "Limits",
    "Outcome",
    "Sandbox",
    "code_in",
    "fenced",
    "result_of",
]
