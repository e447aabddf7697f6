"""The cases: one factor at a time is varied around a base for each model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work that inwit and TRL both do.

    Attributes:
        model: a name of `models.MODELS`.
        prompts: distinct prompts in a step; each gets `group` completions.
        prompt_tokens, completion_tokens: of every prompt and of every completion.
        common_tokens: that all prompts begin with, as a chat template makes them do.
        trl_rows: rows that TRL trains at once, its gradients accumulated over them; the faster of
            all at once and 8 at once, where both were tried. inwit chooses for itself.
    """

    name: str
    model: str
    prompts: int = 8
    group: int = 8
    prompt_tokens: int = 60
    completion_tokens: int = 64
    threads: int = 2
    common_tokens: int = 0
    trl_rows: int = 8

    @property
    def tokens(self) -> int:
        """Completion tokens that a step samples and trains."""
        return self.prompts * self.group * self.completion_tokens

    def describe(self) -> str:
        return (
            f"{self.prompts} prompts of {self.prompt_tokens} tokens x {self.group} completions of "
            f"{self.completion_tokens}, {self.threads} thread{'s' * (self.threads > 1)}"
            + (f", the first {self.common_tokens} tokens alike" if self.common_tokens else "")
        )


def _tiny(name: str, threads: int) -> Case:
    return Case(name, "tiny", 16, 16, 16, 8, threads, trl_rows=256)


CASES = (
    _tiny("tiny", 2),
    _tiny("tiny-1-thread", 1),
    Case("3.2M", "3.2M"),
    Case("3.2M-1-thread", "3.2M", threads=1),
    Case("3.2M-group-16", "3.2M", prompts=4, group=16),
    Case("3.2M-completion-16", "3.2M", completion_tokens=16),
    Case("3.2M-completion-256", "3.2M", prompts=2, completion_tokens=256),
    Case("3.2M-prompt-400", "3.2M", prompt_tokens=400),
    Case("3.2M-template", "3.2M", prompt_tokens=90, common_tokens=30),
    Case("smollm2", "SmolLM2-135M"),
    Case("smollm2-prompt-400", "SmolLM2-135M", prompts=2, prompt_tokens=400),
    Case("smollm2-small", "SmolLM2-135M", prompts=2, completion_tokens=16, threads=1),
)

QUICK = "3.2M"
"""The case that `--quick` measures alone."""


def chosen(names: list[str], quick: bool) -> list[Case]:
    """The cases asked for, in the order of `CASES`; all where none is.

    Raises ValueError where there is no such case.
    """
    wanted = [*names, *[QUICK] * quick]
    known = {case.name for case in CASES}
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"there is no case '{unknown[0]}'; there are {', '.join(sorted(known))}")
    return [case for case in CASES if not wanted or case.name in wanted]
