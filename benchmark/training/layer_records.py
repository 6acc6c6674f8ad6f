"""The linear layers and convolutions of a network as matrices, and what each sees and puts out on given images.

A layer is `nn.Linear`, rows of tokens being samples, or `nn.Conv2d` as the matrix (out, in * kernel) on unfolded
patches. What follows it is known where a plain nn.Sequential says so, through nested ones, dropout and flattening:
nn.ReLU, ClippedReLU. Before anything else (GELU, a norm, attention, the sum of a residual, code of a module that calls
the layer itself) its output counts as it is. Activations that torch.nn has and proximal.py knows no subdifferential for
are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.layer_norms import flat
from benchmark.training.proximal import Rows

PASSED_THROUGH = (nn.Dropout, nn.Identity, nn.Flatten)  # the same numbers, in evaluation mode
NOT_KNOWN = (
    nn.CELU, nn.ELU, nn.GLU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.RReLU, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh,
    nn.Tanhshrink, nn.Threshold,
)  # fmt: skip

Seen = list[tuple[Tensor, Tensor]]  # of each batch: a layer's inputs, and its outputs before the activation


@dataclass(frozen=True)
class Layer:
    """A layer by its name in the network, and the activation after it: None for the identity."""

    name: str
    module: nn.Linear | nn.Conv2d
    activation: nn.ReLU | ClippedReLU | None

    def matrix(self) -> Tensor:
        """The weight: (out, in) float64."""
        return self.module.weight.detach().double().flatten(1)

    def bias(self) -> Tensor | None:
        """(out,) float64."""
        return None if self.module.bias is None else self.module.bias.detach().double()

    def asked(self, x: Tensor, z: Tensor) -> Rows:
        """What inputs x and outputs before the activation z, in the layer's own shapes, ask of the weight."""
        if self.activation is None:
            return Rows(self._patches(x), self._rows(z))
        y = z.clamp(min=0)
        if isinstance(self.activation, nn.ReLU):
            return Rows(self._patches(x), self._rows(y), 0.0)
        # reshaped, since the layer's output may be flattened on its way
        theta = self.activation.theta.detach().clamp(min=0).reshape(z.shape[1:]).expand_as(z)
        return Rows(self._patches(x), self._rows(torch.minimum(y, theta)), 0.0, self._rows(theta))

    def _rows(self, output: Tensor) -> Tensor:
        """A row for each position: (n, out) float64."""
        convolution = isinstance(self.module, nn.Conv2d)
        return (output.flatten(2).mT.flatten(0, 1) if convolution else output.flatten(0, -2)).double()

    def _patches(self, x: Tensor) -> Tensor:
        """A row for each position: (n, in) float64."""
        if isinstance(self.module, nn.Linear):
            return self._rows(x)
        kernel, padding, stride = self.module.kernel_size, self.module.padding, self.module.stride
        assert not isinstance(padding, str)  # refused
        return nn.functional.unfold(x.double(), kernel, padding=padding, stride=stride).mT.flatten(0, 1)


def layers_of(model: nn.Module, *, head: bool) -> list[Layer]:
    """The layers of a network, in order; `head` is whether its last nn.Linear is one of them.

    Raises:
        BenchmarkError: none is there; one is a convolution with groups, dilation or a padding other than numbers of
            zeros, has a derived weight or one that another layer has too, or stands before an activation of NOT_KNOWN.
    """
    found = list(_walk(model, "", None))
    last = next((module for _, module, _ in reversed(found) if isinstance(module, nn.Linear)), None)
    taken = [each for each in found if head or each[1] is not last]
    if not taken:
        raise BenchmarkError(
            f"{type(model).__name__} has no nn.Linear or nn.Conv2d" + (" below its head" if found else "")
        )
    weights = [id(module.weight) for _, module, _ in taken]
    for name, module, after in taken:
        if isinstance(module, nn.Conv2d):
            _check_convolution(name, module)
        if "weight" not in dict(module.named_parameters(recurse=False)):
            raise BenchmarkError(
                f"the layer {name} derives its weight from other parameters; only plain weights can be set"
            )
        if weights.count(id(module.weight)) > 1:
            raise BenchmarkError(
                f"the layer {name} shares its weight with another, and one layer alone cannot fit both"
            )
        if isinstance(after, NOT_KNOWN):
            raise BenchmarkError(
                f"{type(after).__name__} after the layer {name} is not covered; use nn.ReLU, ClippedReLU or nn.GELU"
            )
    return [
        Layer(name, module, after if isinstance(after, nn.ReLU | ClippedReLU) else None)
        for name, module, after in taken
    ]


def _check_convolution(name: str, module: nn.Conv2d) -> None:
    dilated = any(step != 1 for step in module.dilation)
    if module.groups != 1 or dilated or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise BenchmarkError(f"the convolution {name} should have groups 1, dilation 1 and zeros as padding, by number")


def _walk(
    module: nn.Module, name: str, after: nn.Module | None
) -> Iterator[tuple[str, nn.Linear | nn.Conv2d, nn.Module | None]]:
    """Each layer's name and module, and the module that gets its output, where sequences say which."""
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
def record(
    layer: Layer, trained: nn.Module, changed: nn.Module, batches: tuple[Tensor, ...], device: torch.device
) -> Seen:
    """A layer's inputs in one network and its outputs in another, or the same; empty where neither calls it.

    Args:
        trained, changed: networks in evaluation mode, each with a layer of this name: outputs are of the first, inputs
            of the second.
        batches: images.

    Raises:
        BenchmarkError: a network calls the layer more than once, when nothing says which activation follows.
    """
    seen: Seen = []
    for images in batches:
        inputs, z = _called(layer.name, trained, images.to(device))
        if changed is not trained:
            inputs, _ = _called(layer.name, changed, images.to(device))
        seen += zip(inputs, z, strict=True)
    return seen


def _called(name: str, network: nn.Module, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The layer's inputs and its outputs: one of each, or none. Copies, since an activation may work in place."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        inputs.append(given[0].clone())
        outputs.append(made.clone())

    with network.get_submodule(name).register_forward_hook(keep):
        network(images)
    if len(inputs) > 1:
        raise BenchmarkError(
            f"the network calls the layer {name} {len(inputs)} times; one layer alone cannot fit them all"
        )
    return inputs, outputs
