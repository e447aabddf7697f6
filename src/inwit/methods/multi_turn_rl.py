"""Plain multi-turn RL: SCoRe's episodes, with the final outcome as the only reward.

The baseline of SCoRe's section 5: every token of every turn is credited with r of the last attempt,
against the leave-one-out mean of the query's samples; no stages, no bonus. Nothing tells the policy
whether to be right at once or to correct itself.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from inwit.methods.rloo import RLOO, RLOOSettings


class MultiTurnRLSettings(RLOOSettings):
    turns: int = Field(2, ge=2, description="attempts in an episode")


class MultiTurnRL(RLOO):
    Settings: ClassVar = MultiTurnRLSettings
    summary: ClassVar = "several attempts in a conversation, credited with the last one's outcome"
    settings: MultiTurnRLSettings

    @property
    def turns(self) -> int:
        return self.settings.turns
