"""What can go wrong with an endpoint, by what follows from it."""

from __future__ import annotations

from inwit.errors import InwitError


class EndpointError(InwitError):
    """An endpoint cannot be used, or answers as none should."""


class Unanswered(EndpointError):
    """A request that failed in passing, through all its tries. The next one may not."""


class Refused(EndpointError):
    """One request that the endpoint will not answer, such as one that is too long for it."""


class BudgetSpent(EndpointError):
    """What is left of the token budget does not cover a request. It was not sent."""


class Passing(Exception):
    """A fault that the next try may not meet; `wait` is how long the server wants to be let be."""

    def __init__(self, fault: str, wait: float = 0.0) -> None:
        super().__init__(fault)
        self.wait = wait
