"""Weights derived from parameters, and their cache for frozen models: deriving one costs up to a millisecond."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class DerivedWeight(nn.Module):
    """A layer whose weight is derived from its parameters at each use, or once by `cache_weights`.

    A cached weight is used only while parameters and settings equal those from which it was derived. They are compared by
    value, because PyTorch does not notice every change in place.
    """

    _cached: tuple[dict[str, Any], list[torch.Tensor], torch.Tensor] | None = None

    def derive(self) -> torch.Tensor:
        """Compute the weight from the parameters."""
        raise NotImplementedError

    @property
    def derived(self) -> torch.Tensor:
        if self._cached is not None:
            settings, parameters, weight = self._cached
            if settings == self._settings() and all(map(_same, parameters, self.parameters(recurse=False))):
                return weight
        return self.derive()

    def cache_weights(self) -> None:
        parameters = [parameter.detach().clone() for parameter in self.parameters(recurse=False)]
        self._cached = (self._settings(), parameters, self.derive().detach())

    def _settings(self) -> dict[str, Any]:
        """Return the numbers beside the parameters on which the weight may depend."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int | float)}


class DerivedLinear(DerivedWeight):
    """A linear layer whose weight is derived: (..., in) to (..., out)."""

    bias: Any  # a parameter, or None

    @property
    def weight(self) -> torch.Tensor:
        """Return the weight that acts: (out, in)."""
        return self.derived

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def _same(copy: torch.Tensor, parameter: torch.Tensor) -> bool:
    alike = (copy.dtype, copy.device, copy.shape) == (parameter.dtype, parameter.device, parameter.shape)
    return alike and not parameter.requires_grad and torch.equal(copy, parameter)


def cache_weights(model: nn.Module) -> None:
    """Derive the weights of all `DerivedWeight` layers once, for a model that will only be evaluated.

    Raises:
        ValueError: a parameter of such a layer requires gradients.
    """
    for module in model.modules():
        if isinstance(module, DerivedWeight):
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                raise ValueError("a model that learns cannot hold its weights; freeze it first")
            module.cache_weights()
