"""How one layer carries a perturbation around its nominal input: the `Step`.

Around a nominal input x, with an input change D of l2 norm at most d:
  bound(d)      >= ||f(x + D) - f(x)||
  push(columns) =  J columns, J the nominal Jacobian
  gain          >= ||J||
  remainder(r)  >= ||R||, R = f(x + D) - f(x) - J D, for the reach r of D (see `Reach`)
  along(a, r)   >= -<a, R>, a bound of what R can take from a margin with gradient a at the output
  rounding(d)   >= ||fl(f)(x + D) - f(x + D)||, fl(f) the layer as float32 runs it (rounding.py)

Columns are (directions, n, *shape), best laid out in memory as (n, *shape, directions); a is (n, rivals, *shape); float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmark.certificates.bounds.rounding import LARGEST

UP = 1 + 1e-12  # float64 rounding of one formula


@dataclass(frozen=True)
class Reach:
    """What is known of a layer's input change: D = L xi + rest, ||xi|| <= radius, ||rest|| <= rho, ||D|| <= delta."""

    columns: torch.Tensor  # L: (directions, n, *shape)
    radius: torch.Tensor  # (n,)
    rho: torch.Tensor  # (n,)
    delta: torch.Tensor  # (n,)


class Step:
    """A linear layer, given by its map without the constant, a bound of its norm and its rounding; others override."""

    def __init__(
        self,
        linear: Callable[[torch.Tensor], torch.Tensor],
        gain: float | torch.Tensor,
        rounding: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.linear, self.gain, self._rounding = linear, gain, rounding

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        """(n,) to (n,)."""
        return delta * self.gain

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        """A bound for the first look at many images."""
        return self.bound(delta)

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        """(directions, n, *shape) to the same of the output."""
        return self.linear(columns.flatten(0, 1)).unflatten(0, columns.shape[:2])

    def remainder(self, reach: Reach) -> torch.Tensor:
        """(n,)."""
        return torch.zeros_like(reach.delta)

    def along(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        """(n, rivals)."""
        return torch.linalg.vector_norm(a.flatten(2), dim=2) * self.remainder(reach)[:, None] * UP

    def along_each(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        """The same, sooner and not smaller, where a layer has a dearer bound for its elements together."""
        return self.along(a, reach)

    def settle(self, reach: Reach) -> None:
        """Lets a layer choose what `push` applies in place of its Jacobian, of norm at most `gain`, to miss less within
        `reach`; `remainder` then speaks of that, at any reach.
        """

    def lean(self, a: torch.Tensor, reach: Reach) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Another linearisation where a layer has a better one for a margin with gradient a at its output, (taken, b):

        <a, f(x + D) - f(x)> >= <b, D> - taken, taken (n, rivals) and b (n, rivals, *shape). None: the nominal Jacobian's.
        """
        return None

    pushes = True  # whether `push` and `remainder` are to be had

    def runs(self, delta: torch.Tensor) -> torch.Tensor:
        """`rounding`; infinite where values could leave float32's range."""
        return torch.where(self.input_size + delta <= LARGEST, self.rounding(delta), torch.inf)

    input_size: torch.Tensor  # (n,) norms of the nominal inputs, set by `exact_step`

    def take_over(self, earlier: Step, rows: torch.Tensor) -> None:
        """What is dear and `earlier`, a step of the same layer whose inputs `rows` are this one's, has computed."""

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        """(n,) to (n,)."""
        return self._rounding(delta)
