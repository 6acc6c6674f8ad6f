"""A network as a description: a tree of plain JSON that names known layers and their arguments, and plain tensors.

What is rebuilt from a description is made by this process's own constructors. So whoever judges a network can ask its owner
for a description, and speak of what it has built itself: subclasses, hooks, replaced methods and cached weights of the
owner's object do not come along. Whether that object computes the same is another question, which logits answer.

A node of the tree is {"layer": name, "arguments": {...}}, with "parts", a list of nodes, where a layer contains others.
Tensors are named as in the rebuilt network's `state_dict`. Nothing here reads files: bytes that a stranger wrote become a
tree by `json.loads` and tensors by a format that holds numbers alone, such as safetensors, never by pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from benchmark.layers import (  # noqa: F401  they declare their layers
    attention,
    attention_grid,
    attention_l2,
    attention_window,
    clipped_relu,
    competitive_attention,
    isometries,
    lipschitz,
    normalise,
    residual,
    resize,
    scaled_cosine,
    token_convolution,
    tokens,
)
from benchmark.layers.kinds import BY_NAME, BY_TYPE, Kind, shown
from benchmark.runtime.errors import BenchmarkError, said

DEPTH = 16  # of layers inside layers
LAYERS = 1024

Tree = dict[str, Any]


def describe(model: nn.Module) -> tuple[Tree, dict[str, torch.Tensor]]:
    """The description of a network of known layers, each by its exact type.

    Returns:
        The tree, and copies of all parameters and persistent buffers, contiguous float32, on the model's device.

    Raises:
        BenchmarkError: a layer that is not known, an argument that is not what its constructor takes, a parameter that is
            not a float32 tensor, that stands in two places, or that the layer's constructor does not make.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _Describer(tensors).node(model, "", 0)
    return tree, tensors


def rebuild(tree: object, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The network of a description that anybody may have written: in evaluation mode, frozen, its parameters copies.

    Guarantee: it consists of known layers alone, made by their constructors; no code but theirs runs. On one machine it has
    the logits of the network described, bit for bit, as long as that is such a network.

    Args:
        tree: as `describe` gives it, or as it comes back from JSON.
        tensors: by name; all on one device, where the network is built.

    Raises:
        BenchmarkError: the tree is no such tree, or an argument or tensor is unknown, missing, or not what it should be.
    """
    _check_tree(tree)
    with torch.device("meta"):  # no memory and no random numbers: only shapes
        network = _built(tree, "")
    expected = network.state_dict()
    _check_tensors(tensors, expected)
    network.load_state_dict({name: tensors[name].detach().clone() for name in expected}, assign=True)
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    return network.to(device, torch.float32).eval().requires_grad_(False)


class _Describer:
    """Fills `tensors`, and remembers where each parameter was found."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors, self.found, self.layers = tensors, dict[int, str](), 0

    def node(self, layer: nn.Module, path: str, depth: int) -> Tree:
        kind = BY_TYPE.get(type(layer))
        if kind is None:
            raise BenchmarkError(
                f"the layer {type(layer).__name__}{_at(path)} is none that a description knows, so no certificate can speak "
                "of it; use the layers of benchmark/layers and torch's own that certificates know, not subclasses of them"
            )
        self.layers += 1
        if depth > DEPTH or self.layers > LAYERS:
            raise BenchmarkError(
                f"a network of more than {DEPTH} layers inside layers, or {LAYERS} in all, is not described"
            )
        node: Tree = {"layer": kind.layer.__name__, "arguments": _read(kind, layer, path)}
        parts = _parts(kind, layer)
        with torch.device("meta"):
            empty = _made(kind, node["arguments"], [nn.Identity()] * len(parts), path)
        self._keep(layer, kind, empty, path)
        if kind.parts:
            node["parts"] = [self.node(part, _join(path, name), depth + 1) for name, part in parts]
        return node

    def _keep(self, layer: nn.Module, kind: Kind, empty: nn.Module, path: str) -> None:
        """Copies the layer's own tensors, those that `empty` has too."""
        expected = empty.state_dict()
        known = {*expected, *(name for name, _ in empty.named_buffers())}
        if kind.parts != "sequence":
            own = (*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False))
            names = {name for name, _ in own if not (kind.parts and name.startswith(f"{kind.parts}."))}
            if names - known:
                raise BenchmarkError(
                    f"{_place(kind, path)} has a {min(names - known)}, which that layer knows nothing of"
                )
        for name in expected:
            full = _join(path, name)
            tensor = _plain_tensor(_got(layer, name, f"{_place(kind, path)}: its {name}"), _place(kind, path), name)
            if (twin := self.found.setdefault(tensor.data_ptr(), full)) != full:
                raise BenchmarkError(
                    f"{full} and {twin} share their memory; parameters of a described network are apart"
                )
            self.tensors[full] = tensor.clone(memory_format=torch.contiguous_format)


def _parts(kind: Kind, layer: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers inside a layer, by their names in the network that is rebuilt."""
    if kind.parts == "sequence":
        return [(str(index), part) for index, part in enumerate(layer._modules.values())]  # type: ignore[misc]
    return [(kind.parts, getattr(layer, kind.parts))] if kind.parts else []


def _read(kind: Kind, layer: nn.Module, path: str) -> dict[str, Any]:
    found = {}
    for name, argument in kind.arguments.items():
        try:
            found[name] = _plain(argument.read(layer))
        except Exception as error:  # an attribute that is gone, or of another type
            raise BenchmarkError(f"{_place(kind, path)}: its {name} cannot be read: {said(error)}") from error
    return found


def _plain(value: Any) -> Any:
    """A constructor's argument as JSON has it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    raise TypeError(f"a {type(value).__name__} is not a plain number, word or list of them")


def _plain_tensor(tensor: Any, place: str, name: str) -> torch.Tensor:
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
        raise BenchmarkError(f"{place}: its {name} is a {type(tensor).__name__}, not a plain tensor")
    if tensor.dtype != torch.float32:
        raise BenchmarkError(
            f"{place}: its {name} is {tensor.dtype}; only float32 networks are described and certified"
        )
    return tensor.detach()


def _got(layer: nn.Module, name: str, what: str) -> Any:
    try:
        return attrgetter(name)(layer)
    except Exception as error:
        raise BenchmarkError(f"{what} cannot be read: {said(error)}") from error


def _check_tree(tree: object) -> None:
    """Raise a BenchmarkError for what is not made of nodes, or of too many; without recursion, which a deep tree exhausts."""
    left, count = [(tree, 0)], 0
    while left:
        node, depth = left.pop()
        count += 1
        if depth > DEPTH or count > LAYERS:
            raise BenchmarkError(
                f"the description has more than {DEPTH} layers inside layers, or more than {LAYERS} in all"
            )
        if type(node) is not dict or not {"layer", "arguments"} <= set(node) <= {"layer", "arguments", "parts"}:
            raise BenchmarkError(
                f"a node of the description should hold layer, arguments and perhaps parts: {shown(node)}"
            )
        kind = BY_NAME.get(node["layer"]) if type(node["layer"]) is str else None
        if kind is None:
            raise BenchmarkError(f"the description names an unknown layer {shown(node['layer'])}")
        if type(node["arguments"]) is not dict or set(node["arguments"]) != set(kind.arguments):
            wanted = ", ".join(kind.arguments) or "none"
            raise BenchmarkError(f"arguments of {kind.layer.__name__} should be {wanted}: {shown(node['arguments'])}")
        parts = node.get("parts", [])
        if (
            type(parts) is not list
            or ("parts" in node) != bool(kind.parts)
            or (kind.parts == "body" and len(parts) != 1)
        ):
            what = {"": "no parts", "body": "one part", "sequence": "a list of parts"}[kind.parts]
            raise BenchmarkError(f"a description of {kind.layer.__name__} should hold {what}")
        left += [(part, depth + 1) for part in parts]


def _built(node: Any, path: str) -> nn.Module:
    """The network of a checked tree."""
    kind = BY_NAME[node["layer"]]
    names = [kind.parts] if kind.parts == "body" else map(str, range(len(node.get("parts", ()))))
    parts = [_built(part, _join(path, name)) for name, part in zip(names, node.get("parts", ()), strict=True)]
    return _made(kind, node["arguments"], parts, path)


def _made(kind: Kind, arguments: Mapping[str, Any], parts: list[Any], path: str) -> nn.Module:
    """One layer by its constructor; a BenchmarkError for an argument that is not what it should be."""
    checked = {}
    for name, value in arguments.items():
        try:
            checked[name] = kind.arguments[name].check(value)
        except ValueError as error:
            raise BenchmarkError(f"{_place(kind, path)}: {name} {shown(value)}: {error}") from None
    try:
        return kind.layer(*parts, **checked)
    except Exception as error:  # arguments that do not go together, in the constructor's words
        raise BenchmarkError(f"{_place(kind, path)}: {said(error)}") from error


def _check_tensors(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Raise a BenchmarkError for a tensor that is missing, unknown, not plain, finite and of its shape, or elsewhere."""
    if lacking := [name for name in expected if name not in tensors]:
        raise BenchmarkError(f"the description lacks the tensor {lacking[0]}")
    if extra := [name for name in tensors if name not in expected]:
        raise BenchmarkError(f"the description has a tensor {shown(extra[0])}, which no layer of it knows")
    for name, wanted in expected.items():
        tensor = tensors[name]
        plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_meta
        if not plain or tensor.dtype != torch.float32:
            raise BenchmarkError(f"the tensor {name} of the description should be a plain float32 tensor")
        if tensor.shape != wanted.shape or not tensor.is_contiguous():
            raise BenchmarkError(
                f"the tensor {name} of the description should be contiguous and of shape {tuple(wanted.shape)}, not "
                f"{tuple(tensor.shape)}"
            )
        if not bool(tensor.isfinite().all()):
            raise BenchmarkError(f"the tensor {name} of the description holds NaN or infinity")
    if len({tensor.device for tensor in tensors.values()}) > 1:
        raise BenchmarkError("the tensors of the description are on several devices")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _place(kind: Kind, path: str) -> str:
    return f"the layer {kind.layer.__name__}{_at(path)}"
