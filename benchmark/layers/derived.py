"""Weights derived from parameters, kept while a model is frozen: deriving one costs up to a millisecond."""

from __future__ import annotations

import torch
from torch import nn


class Derived(nn.Module):
    """A layer with a weight derived from its parameters: anew at each use, or once for all, held by `hold`.

    What is held counts only while the parameters are the frozen ones that it was made of, by storage, version and type.
    """

    _held: tuple[tuple, torch.Tensor] | None = None

    def derive(self) -> torch.Tensor:
        raise NotImplementedError

    @property
    def derived(self) -> torch.Tensor:
        if self._held is not None and self._held[0] == self._made_of():
            return self._held[1]
        return self.derive()

    def hold(self) -> None:
        self._held = (self._made_of(), self.derive().detach())

    def _made_of(self) -> tuple:
        return tuple((p.data_ptr(), p._version, p.dtype, p.requires_grad) for p in self.parameters(recurse=False))


def hold(model: nn.Module) -> None:
    """Derives the weights of all layers once, for a model that will only be evaluated.

    Raises:
        ValueError: a parameter of such a layer still learns.
    """
    for module in model.modules():
        if isinstance(module, Derived):
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                raise ValueError("a model that learns cannot hold its weights; freeze it first")
            module.hold()
