"""What is left of a network's accuracy when its attention is replaced."""

from __future__ import annotations

from benchmark.results.proportion import Proportion
from benchmark.specs.base import Frozen


class WithoutAttention(Frozen):
    """`clean` accuracy of the network so changed, another classifier; on how many images it predicts another class."""

    clean: Proportion
    changed: int


class AttentionResult(Frozen):
    """The network with uniform averaging in the place of its attention, and with nothing there. Neither ranks."""

    uniform: WithoutAttention
    none: WithoutAttention
