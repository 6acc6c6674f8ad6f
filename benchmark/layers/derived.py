"""Weights derived from parameters, kept while a model is frozen: deriving one costs up to a millisecond."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Derived(nn.Module):
    """A layer with a weight derived from its parameters: anew at each use, or once for all, held by `hold`.

    What is held counts only while parameters and settings are those that it was made of, compared by their values: a
    parameter can change in place without torch's knowing.
    """

    _held: tuple[dict[str, Any], list[torch.Tensor], torch.Tensor] | None = None

    def derive(self) -> torch.Tensor:
        raise NotImplementedError

    @property
    def derived(self) -> torch.Tensor:
        if self._held is not None:
            settings, made_of, weight = self._held
            if settings == self._settings() and all(map(_same, made_of, self.parameters(recurse=False))):
                return weight
        return self.derive()

    def hold(self) -> None:
        made_of = [parameter.detach().clone() for parameter in self.parameters(recurse=False)]
        self._held = (self._settings(), made_of, self.derive().detach())

    def _settings(self) -> dict[str, Any]:
        """What a weight may depend on beside the parameters."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int | float)}


def _same(kept: torch.Tensor, parameter: torch.Tensor) -> bool:
    alike = (kept.dtype, kept.device, kept.shape) == (parameter.dtype, parameter.device, parameter.shape)
    return alike and not parameter.requires_grad and torch.equal(kept, parameter)


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
