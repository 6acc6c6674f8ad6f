"""The linear layers and convolutions of a network as matrices, with their inputs and outputs on given images.

A layer is `nn.Linear`, whose tokens are samples, or `nn.Conv2d` as the matrix (out, in * kernel) on unfolded patches. An
nn.ReLU or ClippedReLU after it counts as its activation if a plain nn.Sequential says so, also through nested sequences,
dropout and flattening. Before anything else (GELU, a norm, attention, a residual's sum, a module that calls the layer itself)
the output counts without activation. Activations of torch.nn whose subdifferential proximal.py does not know are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.layer_norms import flat

from .proximal import Rows

PASSED_THROUGH = (nn.Dropout, nn.Identity, nn.Flatten)  # keep the numbers in evaluation mode
NOT_KNOWN = (
    nn.CELU, nn.ELU, nn.GLU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.RReLU, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh,
    nn.Tanhshrink, nn.Threshold,
)  # fmt: skip

Seen = list[tuple[Tensor, Tensor]]  # for each batch a layer's inputs, and its outputs before the activation


@dataclass(frozen=True)
class Layer:
    """A layer, its name in the network, and the activation after it: None for the identity."""

    name: str
    module: nn.Linear | nn.Conv2d
    activation: nn.ReLU | ClippedReLU | None

    def matrix(self) -> Tensor:
        """Return the weight: (out, in) float64."""
        return self.module.weight.detach().double().flatten(1)

    def bias(self) -> Tensor | None:
        """Return the bias: (out,) float64."""
        return None if self.module.bias is None else self.module.bias.detach().double()

    def asked(self, x: Tensor, z: Tensor) -> Rows:
        """Return what inputs x and outputs before the activation z, in the layer's shapes, ask of the weight."""
        if self.activation is None:
            return Rows(self._patches(x), self._rows(z))
        y = z.clamp(min=0)
        if isinstance(self.activation, nn.ReLU):
            return Rows(self._patches(x), self._rows(y), 0.0)
        # reshaped, since the layer's output may be flattened on its way
        theta = self.activation.theta.detach().clamp(min=0).reshape(z.shape[1:]).expand_as(z)
        return Rows(self._patches(x), self._rows(torch.minimum(y, theta)), 0.0, self._rows(theta))

    def _rows(self, output: Tensor) -> Tensor:
        """Return a row for each position: (n, out) float64."""
        convolution = isinstance(self.module, nn.Conv2d)
        return (output.flatten(2).mT.flatten(0, 1) if convolution else output.flatten(0, -2)).double()

    def _patches(self, x: Tensor) -> Tensor:
        """Return a row for each position: (n, in) float64."""
        if isinstance(self.module, nn.Linear):
            return self._rows(x)
        kernel, padding, stride = self.module.kernel_size, self.module.padding, self.module.stride
        assert not isinstance(padding, str)  # refused
        return nn.functional.unfold(x.double(), kernel, padding=padding, stride=stride).mT.flatten(0, 1)


def layers_of(model: nn.Module, *, head: bool) -> list[Layer]:
    """Return the layers of a network, in order; with `head` its last nn.Linear is one of them.

    Raises:
        BenchmarkError: there is no layer; or a layer is a convolution with groups, dilation or a padding other than numbers
            of zeros, has a derived or shared weight, or precedes an activation of NOT_KNOWN.
    """
    every = list(_walk(model, "", None))
    last = next((module for _, module, _ in reversed(every) if isinstance(module, nn.Linear)), None)
    chosen = [item for item in every if head or item[1] is not last]
    if not chosen:
        where = " below its head" if every else ""
        raise BenchmarkError(f"{type(model).__name__} has no nn.Linear or nn.Conv2d{where}")
    weights = [id(module.weight) for _, module, _ in chosen]
    layers = []
    for name, module, after in chosen:
        if problem := _problem(name, module, after):
            raise BenchmarkError(problem)
        if weights.count(id(module.weight)) > 1:
            raise BenchmarkError(f"the layer {name} shares its weight with another, and one layer alone cannot fit both")
        layers.append(Layer(name, module, after if isinstance(after, nn.ReLU | ClippedReLU) else None))
    return layers


def _problem(name: str, module: nn.Linear | nn.Conv2d, after: nn.Module | None) -> str:
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and {*module.dilation} == {1} and module.padding_mode == "zeros"
        if not plain or isinstance(module.padding, str):
            return f"the convolution {name} should have groups 1, dilation 1 and zeros as padding, by number"
    if "weight" not in module._parameters:
        return f"the layer {name} derives its weight from other parameters; only plain weights can be set"
    if isinstance(after, NOT_KNOWN):
        return f"{type(after).__name__} after the layer {name} is not covered; use nn.ReLU, ClippedReLU or nn.GELU"
    return ""


def _walk(
    module: nn.Module, name: str, after: nn.Module | None
) -> Iterator[tuple[str, nn.Linear | nn.Conv2d, nn.Module | None]]:
    """Yield each layer's name, module, and the module that receives its output, if sequences say which."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        yield name, module, after
        return
    children = [(key, child) for key, child in module._modules.items() if child is not None]  # repeated ones too
    for index, (key, child) in enumerate(children):
        following = None
        if type(module) is nn.Sequential:
            behind = (part for _, other in children[index + 1 :] for part in flat(other))
            following = next((part for part in behind if not isinstance(part, PASSED_THROUGH)), after)
        yield from _walk(child, f"{name}.{key}" if name else key, following)


@torch.no_grad()
def record(layer: Layer, trained: nn.Module, changed: nn.Module, batches: tuple[Tensor, ...], device: torch.device) -> Seen:
    """Return a layer's inputs in `changed` and outputs in `trained` for each batch; nothing where the layer is not called.

    Args:
        trained, changed: networks in evaluation mode, each with a layer of this name; they may be the same.
        batches: images.

    Raises:
        BenchmarkError: a network calls the layer more than once, so its activation is not known.
    """
    seen: Seen = []
    for images in batches:
        calls = _calls(layer.name, trained, images.to(device))
        others = calls if changed is trained else _calls(layer.name, changed, images.to(device))
        seen += [(inputs, z) for (inputs, _), (_, z) in zip(others, calls, strict=True)]
    return seen


def _calls(name: str, network: nn.Module, images: Tensor) -> Seen:
    """Return the layer's input and output: one pair or none. They are copies, since an activation may work in place."""
    calls: Seen = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((inputs[0].clone(), output.clone()))

    with network.get_submodule(name).register_forward_hook(keep):
        network(images)
    if len(calls) > 1:
        raise BenchmarkError(f"the network calls the layer {name} {len(calls)} times; one layer alone cannot fit them all")
    return calls
