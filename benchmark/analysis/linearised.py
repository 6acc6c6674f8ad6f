"""A block's Jacobian by its products alone, for any module that can be differentiated twice."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.analysis.blocks import BlockInput
from benchmark.runtime.errors import BenchmarkError, said

ADJOINT = 1e-2  # how far the two products may be from adjoint, relative; rounding is far below


class Linearised:
    """The Jacobian I + J of a block at tokens (n, tokens, width), as n linear maps on (n, entries).

    J v is the derivative of the vjp, which is linear in its cotangent: so no rule of forward mode is needed.

    Raises:
        BenchmarkError: the block cannot be differentiated once, or not twice.
    """

    def __init__(self, block: BlockInput, tokens: torch.Tensor) -> None:
        self.name = block.name
        try:
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
                self.tokens = tokens.clone().requires_grad_(True)
                self.out = block.at(self.tokens)
                if not self.out.requires_grad:
                    raise BenchmarkError(f"block {block.name!r} has no derivative by its tokens")
                self.cotangent = torch.zeros_like(self.out, requires_grad=True)
                (self.pulled,) = torch.autograd.grad(
                    self.out, self.tokens, self.cotangent, create_graph=True, materialize_grads=True
                )
                self._check_adjoint()
        except RuntimeError as error:
            raise BenchmarkError(f"block {block.name!r} cannot be differentiated twice: {said(error)}") from error

    def _check_adjoint(self) -> None:
        """Where there is no second derivative torch may give zeros and say nothing: <u, A A^T u> is not |A^T u|^2 then."""
        generator = torch.Generator().manual_seed(0)
        u = torch.randn(self.out.shape, generator=generator).to(self.out).flatten(1)
        pulled = self.vjp(u)
        square, other = pulled.double().square().sum(1), (u.double() * self.jvp(pulled).double()).sum(1)
        if ((square - other).abs() > ADJOINT * square).any():  # False where they are not finite, which Lanczos sees
            raise BenchmarkError(
                f"block {self.name!r} cannot be differentiated twice: its second derivative is not its own"
            )

    def jvp(self, v: torch.Tensor) -> torch.Tensor:
        """(I + J) v."""
        (found,) = torch.autograd.grad(
            self.pulled, self.cotangent, v.view_as(self.pulled), retain_graph=True, materialize_grads=True
        )
        return found.flatten(1)

    def vjp(self, u: torch.Tensor) -> torch.Tensor:
        """(I + J)^T u."""
        (found,) = torch.autograd.grad(
            self.out, self.tokens, u.view_as(self.out), retain_graph=True, materialize_grads=True
        )
        return found.flatten(1)

    def symmetric(self, quantity: str, v: torch.Tensor) -> torch.Tensor:
        """The symmetric map whose largest eigenvalue is the quantity (`log_norm`), or its square."""
        if quantity == "log_norm":
            return (self.jvp(v) + self.vjp(v)) / 2 - v
        if quantity == "residual_gain":
            return self.vjp(self.jvp(v))
        branch = self.jvp(v) - v
        return self.vjp(branch) - branch
