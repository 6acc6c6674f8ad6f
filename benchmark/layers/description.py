"""A network as a description: a tree of plain JSON that names declared layers and their arguments, and plain tensors.

Rebuilding uses this process's own constructors. An evaluator can therefore ask for a description of an untrusted network
and certify the network that it rebuilds itself: subclasses, hooks, replaced methods and cached weights do not come along.
Whether the original computes the same is another question, which a comparison of logits answers.

A node of the tree is {"layer": name, "arguments": {...}}, with "parts", a list of nodes, if the layer contains others.
Tensors are named as in the rebuilt network's `state_dict`. Nothing here reads files. Untrusted bytes become a tree by
`json.loads`, and tensors by a format that holds numbers alone, such as safetensors, never by pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
TIMM = ("VisionTransformer", "Xcit")  # declared in timm_networks.py
MASK = 2**14  # numbers of windows' masks that count as one layer

Tree = dict[str, Any]


def describe(model: nn.Module, *, timm: bool = False) -> tuple[Tree, dict[str, torch.Tensor]]:
    """Describe a network of declared layers, each by its exact type.

    Args:
        timm: whether its ViT and XCiT count as layers. No certificate knows them.

    Returns:
        The tree, and copies of all parameters and persistent buffers, contiguous float32, on the model's device.

    Raises:
        BenchmarkError: a layer is not declared; an argument is not what its constructor takes; or a parameter is not a
            float32 tensor, occurs twice, or is not one that the layer's constructor makes.
    """
    describer = _Describer(timm)
    return describer.node(model, "", 0), describer.tensors


def rebuild(tree: object, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Rebuild the network of an untrusted description: in evaluation mode, frozen, with copies of the tensors.

    Guarantee: it consists of declared layers alone, made as `known` says; no other code runs. If the described network
    consists of layers of this benchmark and torch too, both have bit-identical logits on one machine.

    Args:
        tree: from `describe`, directly or through JSON.
        tensors: by name, all on one device, where the network is built.

    Raises:
        BenchmarkError: the tree is malformed, or an argument or tensor is unknown, missing or malformed.
    """
    _check_tree(tree)
    with torch.device("meta"):  # shapes alone, without memory and random numbers
        network = _built(tree, "")
    expected = _numbers(network)
    _check_tensors(tensors, expected)
    network.load_state_dict({name: tensors[name].detach().clone() for name in expected}, assign=True)
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    return network.to(device, torch.float32).eval().requires_grad_(False)


class _Describer:
    """Collects tensors, and remembers the name of each parameter's memory."""

    def __init__(self, timm: bool) -> None:
        self.timm = timm
        self.tensors: dict[str, torch.Tensor] = {}
        self.names: dict[int, str] = {}
        self.layers = 0

    def node(self, layer: nn.Module, path: str, depth: int) -> Tree:
        if self.timm and type(layer).__name__ in TIMM:
            _declare_timm()
        kind = BY_TYPE.get(type(layer))
        if kind is None or (kind.layer.__name__ in TIMM and not self.timm):
            raise BenchmarkError(
                f"the layer {type(layer).__name__}{_at(path)} is none that a description knows, so no certificate can speak "
                "of it; use the layers of benchmark/layers and torch's own that certificates know, not subclasses of them"
            )
        self.layers += 1
        if depth > DEPTH or self.layers > LAYERS:
            raise BenchmarkError(f"a network of more than {DEPTH} layers inside layers, or {LAYERS} in all, is not described")
        place = _place(kind, path)
        arguments = {
            name: _got(layer, argument.read, f"{place}: its {name}", _plain) for name, argument in kind.arguments.items()
        }
        parts = _parts(kind, layer)
        with torch.device("meta"):
            empty = _made(kind, arguments, [nn.Identity()] * len(parts), path)
        self._keep(layer, kind, empty, path)
        node: Tree = {"layer": kind.layer.__name__, "arguments": arguments}
        if kind.parts:
            node["parts"] = [self.node(part, _join(path, name), depth + 1) for name, part in parts]
        return node

    def _keep(self, layer: nn.Module, kind: Kind, empty: nn.Module, path: str) -> None:
        """Copy the layer's own tensors, those that `empty` has too."""
        place, expected = _place(kind, path), _numbers(empty)
        if kind.parts != "sequence":
            own = (*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False))
            names = {name for name, _ in own if not (kind.parts and name.startswith(f"{kind.parts}."))}
            if extra := names - {*expected, *(name for name, _ in empty.named_buffers())}:
                raise BenchmarkError(f"{place} has a {min(extra)}, which that layer knows nothing of")
        for name in expected:
            full = _join(path, name)
            tensor = _got(layer, attrgetter(name), f"{place}: its {name}")
            if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
                raise BenchmarkError(f"{place}: its {name} is a {type(tensor).__name__}, not a plain tensor")
            if tensor.dtype != torch.float32:
                raise BenchmarkError(
                    f"{place}: its {name} is {tensor.dtype}; only float32 networks are described and certified"
                )
            if (twin := self.names.setdefault(tensor.data_ptr(), full)) != full:
                raise BenchmarkError(f"{full} and {twin} share their memory; a described network's parameters are apart")
            self.tensors[full] = tensor.detach().clone(memory_format=torch.contiguous_format)


def _numbers(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state without BatchNorm's count of training steps, an integer that torch sets to 0."""
    return {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}


def _declare_timm() -> None:
    """Declare timm's networks, whose import takes seconds, when one of them is described or named."""
    from benchmark.layers import timm_networks  # noqa: F401


def _got(layer: nn.Module, read: Callable[[Any], Any], what: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    try:
        return convert(read(layer))
    except Exception as error:  # an attribute that is gone, or of another type
        raise BenchmarkError(f"{what} cannot be read: {said(error)}") from error


def _parts(kind: Kind, layer: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers inside a layer, by their names in the rebuilt network."""
    if kind.parts == "sequence":
        return [(str(index), part) for index, part in enumerate(layer._modules.values())]  # type: ignore[misc]
    return [(kind.parts, getattr(layer, kind.parts))] if kind.parts else []


def _plain(value: Any) -> Any:
    """Return a constructor's argument as JSON holds it."""
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


def _check_tree(tree: object) -> None:
    """Raise a BenchmarkError for a malformed or too large tree. Not recursive: a deep tree would exhaust the stack."""
    left, count = [(tree, 0)], 0
    while left:
        node, depth = left.pop()
        count += 1
        if depth > DEPTH or count > LAYERS:
            raise BenchmarkError(f"the description has more than {DEPTH} layers inside layers, or more than {LAYERS} in all")
        if type(node) is not dict or not {"layer", "arguments"} <= set(node) <= {"layer", "arguments", "parts"}:
            raise BenchmarkError(f"a node of the description should hold layer, arguments and perhaps parts: {shown(node)}")
        if node["layer"] in TIMM:
            _declare_timm()
        kind = BY_NAME.get(node["layer"]) if type(node["layer"]) is str else None
        if kind is None:
            raise BenchmarkError(f"the description names an unknown layer {shown(node['layer'])}")
        if type(node["arguments"]) is not dict or set(node["arguments"]) != set(kind.arguments):
            names = ", ".join(kind.arguments) or "none"
            raise BenchmarkError(f"arguments of {kind.layer.__name__} should be {names}: {shown(node['arguments'])}")
        count += _more_layers(node["arguments"])
        parts = node.get("parts", [])
        right_count = kind.parts != "body" or (type(parts) is list and len(parts) == 1)
        if type(parts) is not list or ("parts" in node) != bool(kind.parts) or not right_count:
            what = {"": "no parts", "body": "one part", "sequence": "a list of parts"}[kind.parts]
            raise BenchmarkError(f"a description of {kind.layer.__name__} should hold {what}")
        left += [(part, depth + 1) for part in parts]


def _more_layers(arguments: Mapping[str, Any]) -> int:
    """Return how many layers more a layer of unchecked arguments counts as: its blocks, and the size of its mask."""
    sizes = {name: value for name, value in arguments.items() if type(value) is int and value > 0}
    mask = (sizes.get("side", 0) * sizes.get("window", 0)) ** 2 // MASK if "shift" in arguments else 0
    return sizes.get("depth", 0) + sizes.get("cls_attn_layers", 0) + mask


def _built(node: Any, path: str) -> nn.Module:
    """Build the network of a checked tree."""
    kind, nodes = BY_NAME[node["layer"]], node.get("parts", ())
    names = ["body"] if kind.parts == "body" else map(str, range(len(nodes)))
    parts = [_built(part, _join(path, name)) for name, part in zip(names, nodes, strict=True)]
    return _made(kind, node["arguments"], parts, path)


def _made(kind: Kind, arguments: Mapping[str, Any], parts: list[Any], path: str) -> nn.Module:
    """Make one layer as its kind says. Raise a BenchmarkError if an argument is not what it should be."""
    checked = {}
    for name, value in arguments.items():
        try:
            checked[name] = kind.arguments[name].check(value)
        except ValueError as error:
            raise BenchmarkError(f"{_place(kind, path)}: {name} {shown(value)}: {error}") from None
    try:
        return kind.make(*parts, **checked)
    except Exception as error:  # arguments that do not go together, in the constructor's words
        raise BenchmarkError(f"{_place(kind, path)}: {said(error)}") from error


def _check_tensors(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Raise a BenchmarkError unless all tensors are known, plain, finite, of their shape and on one device."""
    if lacking := [name for name in expected if name not in tensors]:
        raise BenchmarkError(f"the description lacks the tensor {lacking[0]}")
    if extra := [name for name in tensors if name not in expected]:
        raise BenchmarkError(f"the description has a tensor {shown(extra[0])}, which no layer of it knows")
    for name, made in expected.items():
        tensor = tensors[name]
        plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_meta
        if not plain or tensor.dtype != torch.float32:
            raise BenchmarkError(f"the tensor {name} of the description should be a plain float32 tensor")
        if tensor.shape != made.shape or not tensor.is_contiguous():
            raise BenchmarkError(
                f"the tensor {name} of the description should be contiguous and of shape {tuple(made.shape)}, not "
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
