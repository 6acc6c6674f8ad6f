"""Which parts of two networks belong together, where one has other attention than the other.

Attention layers are matched in order. All other parameters and buffers are matched kind by kind, and in order within a kind:
modules whose weight has two axes or more (linear layers, convolutions), modules whose weight has one (norms), and every
parameter of another name by itself, timm's `cls_token` as `token` and `pos_embed` as `offset`. Neither order alone would do,
since timm's network holds the class token before the patch embedding, nor names, since a sequence numbers its layers. Shapes
must agree once axes of length 1 in front are dropped and those after the first are joined, which makes a convolution of
patches the linear layer that follows `Patchify`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from benchmark.layers.attention_weights import is_attention
from benchmark.runtime.errors import BenchmarkError

SAME_NAME = {"cls_token": "token", "pos_embed": "offset"}
Unit = dict[str, str]  # a parameter's name in its module: its name in the network


@dataclass(frozen=True)
class Counterparts:
    """`attention`: (name there, name here) of layers of different kinds. `others`: the same of parameters outside them, and
    of attention layers of one kind. `left_out`: parameters there that have no counterpart here.
    """

    attention: list[tuple[str, str]]
    others: list[tuple[str, str]]
    left_out: list[str]


def counterparts(there: nn.Module, here: nn.Module) -> Counterparts:
    """
    Raises:
        BenchmarkError: the networks do not match; with the first names that differ.
    """
    theirs, ours = _attention_layers(there), _attention_layers(here)
    if not ours:
        raise BenchmarkError(f"{type(here).__name__} has no attention layer that is known here")
    if len(theirs) != len(ours):
        raise BenchmarkError(f"the trained network has {len(theirs)} attention layers, this one {len(ours)}")
    pairs = zip(theirs.items(), ours.items(), strict=True)
    attention = [(a, b) for (a, theirs), (b, ours) in pairs if _kind(theirs) != _kind(ours)]
    others, left_out = _matched(_units(there, [a for a, _ in attention]), _units(here, [b for _, b in attention]))
    before, after = there.state_dict(), here.state_dict()
    for a, b in others:
        if _plain(before[a]) != _plain(after[b]):
            shapes = f"{tuple(before[a].shape)} in the trained network and {b} is {tuple(after[b].shape)} here"
            raise BenchmarkError(f"{a} is {shapes}; only attention may differ")
    return Counterparts(attention, others, left_out)


def _attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost attention layers, what wraps one as its `content` counting as one, by name and in order."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        content = getattr(module, "content", None)
        known = is_attention(module) or (isinstance(content, nn.Module) and is_attention(content))
        if known and not any(name.startswith(f"{outer}.") for outer in layers):
            layers[name] = module
    return layers


def _kind(layer: nn.Module) -> tuple[type, type]:
    return type(layer), type(getattr(layer, "content", None))


def _units(model: nn.Module, without: list[str]) -> dict[str, list[Unit]]:
    """The units of each kind, in order, those of the layers `without` left out."""
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


def _matched(there: dict[str, list[Unit]], here: dict[str, list[Unit]]) -> tuple[list[tuple[str, str]], list[str]]:
    """The pairs of names, and those there that stay without one: whole kinds, or parameters of a unit such as biases."""
    pairs: list[tuple[str, str]] = []
    left_out = [key for kind, units in there.items() if kind not in here for unit in units for key in unit.values()]
    for kind, ours in here.items():
        theirs = there.get(kind, [])
        if len(theirs) != len(ours):
            extra = max(theirs, ours, key=len)[min(len(theirs), len(ours))]
            raise BenchmarkError(
                f"outside attention the trained network has {len(theirs)} of the kind {kind}, this one {len(ours)}: one has "
                f"no counterpart of the other's {next(iter(extra.values()))}"
            )
        for before, after in zip(theirs, ours, strict=True):
            if missing := next((key for name, key in after.items() if name not in before), None):
                place = next(iter(before.values()))
                raise BenchmarkError(f"{missing} has no counterpart in the trained network, at {place}")
            pairs += [(before[name], key) for name, key in after.items()]
            left_out += [key for name, key in before.items() if name not in after]
    return pairs, left_out


def _plain(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its shape without axes of length 1 in front, all after the first joined."""
    while tensor.ndim > 1 and len(tensor) == 1:
        tensor = tensor[0]
    return tuple(tensor.flatten(1).shape if tensor.ndim > 2 else tensor.shape)
