"""Matching parts of two networks that differ in their attention.

Attention layers are matched in order. All other parameters and buffers are matched in order within their kind: modules whose
weight has two axes or more (linear layers, convolutions), modules whose weight has one (norms), and other parameters by
name, with timm's `cls_token` as `token` and `pos_embed` as `offset`. The order of all parts would not do, since timm's class
token comes before the patch embedding; names would not, since a sequence numbers its layers. Shapes must agree after
dropping leading axes of length 1 and joining all axes after the first. So a convolution of patches matches the linear layer
after `Patchify`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from benchmark.layers.attention_weights import is_attention
from benchmark.runtime.errors import BenchmarkError

SAME_NAME = {"cls_token": "token", "pos_embed": "offset"}
Unit = dict[str, str]  # a module's parameters: name in the module to name in the network


@dataclass(frozen=True)
class Counterparts:
    """The matches between a trained network and a new one.

    Attributes:
        attention: (trained name, new name) of attention layers of different kinds.
        others: the same for all other parameters.
        left_out: parameters of the trained network without a counterpart.
    """

    attention: list[tuple[str, str]]
    others: list[tuple[str, str]]
    left_out: list[str]


def counterparts(trained: nn.Module, new: nn.Module) -> Counterparts:
    """Match the parts of a new network with those of a trained one.

    Raises:
        BenchmarkError: the networks do not match; it names the first difference.
    """
    old_layers, new_layers = _attention_layers(trained), _attention_layers(new)
    if not new_layers:
        raise BenchmarkError(f"{type(new).__name__} has no attention layer that is known here")
    if len(old_layers) != len(new_layers):
        raise BenchmarkError(f"the trained network has {len(old_layers)} attention layers, this one {len(new_layers)}")
    pairs = zip(old_layers.items(), new_layers.items(), strict=True)
    attention = [(a, b) for (a, old), (b, layer) in pairs if _kind(old) != _kind(layer)]
    others, left_out = _matched(_units(trained, [a for a, _ in attention]), _units(new, [b for _, b in attention]))
    before, after = trained.state_dict(), new.state_dict()
    for a, b in others:
        if _plain(before[a]) != _plain(after[b]):
            shapes = f"{tuple(before[a].shape)} in the trained network and {b} is {tuple(after[b].shape)} here"
            raise BenchmarkError(f"{a} is {shapes}; only attention may differ")
    return Counterparts(attention, others, left_out)


def _attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost attention layers by name, in order; a module with one as its `content` counts as one."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        content = getattr(module, "content", None)
        attends = is_attention(module) or (isinstance(content, nn.Module) and is_attention(content))
        if attends and not any(name.startswith(f"{outer}.") for outer in layers):
            layers[name] = module
    return layers


def _kind(layer: nn.Module) -> tuple[type, type]:
    return type(layer), type(getattr(layer, "content", None))


def _units(model: nn.Module, without: list[str]) -> dict[str, list[Unit]]:
    """Return the units of each kind, in order, except those of the layers `without`."""
    modules: dict[str, Unit] = {}
    state = model.state_dict()
    for key in state:
        place, _, name = key.rpartition(".")
        if not any(key.startswith(f"{outer}.") for outer in without):
            modules.setdefault(place, {})[name] = key
    kinds: dict[str, list[Unit]] = {}
    for unit in modules.values():
        if "weight" in unit:
            kinds.setdefault("layer" if state[unit["weight"]].ndim > 1 else "norm", []).append(unit)
        else:
            for name, key in unit.items():
                kind = SAME_NAME.get(name, name)
                kinds.setdefault(kind, []).append({kind: key})
    return kinds


def _matched(trained: dict[str, list[Unit]], new: dict[str, list[Unit]]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the pairs of names, and trained names without one: whole kinds, or parameters of a unit such as biases."""
    pairs: list[tuple[str, str]] = []
    left_out = [key for kind, units in trained.items() if kind not in new for unit in units for key in unit.values()]
    for kind, units in new.items():
        old = trained.get(kind, [])
        if len(old) != len(units):
            extra = max(old, units, key=len)[min(len(old), len(units))]
            raise BenchmarkError(
                f"outside attention the trained network has {len(old)} of the kind {kind}, this one {len(units)}: one has "
                f"no counterpart of the other's {next(iter(extra.values()))}"
            )
        for before, after in zip(old, units, strict=True):
            if missing := next((key for name, key in after.items() if name not in before), None):
                place = next(iter(before.values()))
                raise BenchmarkError(f"{missing} has no counterpart in the trained network, at {place}")
            pairs += [(before[name], key) for name, key in after.items()]
            left_out += [key for name, key in before.items() if name not in after]
    return pairs, left_out


def _plain(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape without leading axes of length 1, all axes after the first joined."""
    while tensor.ndim > 1 and len(tensor) == 1:
        tensor = tensor[0]
    return tuple(tensor.flatten(1).shape if tensor.ndim > 2 else tensor.shape)
