"""Problems of mathematics, and a grader of answers to them that can be used alone."""

from inwit.envs.math.env import Math, MathSettings
from inwit.envs.math.grader import Grader, GradingFailed
from inwit.envs.math.grading import Allowed
from inwit.envs.math.texts import final_answer

__all__ = ["Allowed", "Grader", "GradingFailed", "Math", "MathSettings", "final_answer"]
