"""`autoattack.state`, as robustbench imports it."""

from pyautoattack.state import EvaluationState

__all__ = ["EvaluationState"]
