"""The network that a certificate speaks of: rebuilt from the model's description, so that nothing in the model can hide.

The model's hooks, subclasses, replaced methods and cached weights stay behind (layers/description.py). `same_logits` checks
that the model computes what the rebuilt network does.

`full_precision` refuses a certificate where this process does not compute in the float32 that rounding.py analyses. Reduced
precision can come from autocast, from torch's older and newer switches for TF32 and bfloat16, and from oneDNN's environment
variable. Flushing denormal numbers to zero is refused too: the float64 pass, on whose sums of tiny terms the bounds rely,
would flush as well.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from benchmark.layers.competitive_attention import being_watched
from benchmark.layers.derived import cache_weights
from benchmark.layers.description import describe, rebuild
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.runtime.errors import BenchmarkError

from .rounding import LARGEST

ONEDNN = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")  # oneDNN reads both names
SHARED_OUT = 2**17  # numbers, so that each of torch's threads has some


def full_precision(network: nn.Module) -> None:
    """Raise a BenchmarkError where `network` would not run in plain float32 here, or a parameter is too large for it."""
    tensors = [t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()]
    if any(t.dtype != torch.float32 for t in tensors) or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise BenchmarkError("the certificate speaks of float32 networks; give a float32 model, outside autocast")
    if not all(float(t.detach().abs().max()) <= LARGEST for t in tensors if t.numel()):  # a NaN too
        raise BenchmarkError(f"a parameter is NaN or above {LARGEST:g}: float32 could overflow; the certificate is refused")
    if _reduced(any(t.is_cuda for t in tensors), any(isinstance(m, nn.Conv2d) for m in network.modules())):
        raise BenchmarkError(
            "float32 products may run in TF32 or bfloat16 here; set torch.set_float32_matmul_precision('highest') and "
            "torch.backends.cudnn.allow_tf32 = False"
        )
    for name in ONEDNN:
        if (mode := os.environ.get(name, "strict")).lower() not in ("", "strict"):
            raise BenchmarkError(f"{name}={mode} lets oneDNN round float32 products further; unset it and start again")
    if _flushes():
        raise BenchmarkError("denormal numbers are flushed to zero here; call torch.set_flush_denormal(False)")


def _reduced(cuda: bool, convolves: bool) -> bool:
    """Return whether a switch of torch lets float32 products run in TF32 or bfloat16."""
    backends = torch.backends
    try:
        matrices = torch.get_float32_matmul_precision() != "highest" or backends.cuda.matmul.allow_tf32
        convolutions = cuda and convolves and backends.cudnn.allow_tf32
    except RuntimeError as error:  # torch raises where its older and newer switches disagree
        raise BenchmarkError(
            "torch cannot say whether float32 products run in TF32 or bfloat16: its newer switches (fp32_precision) "
            "contradict its older ones (allow_tf32); set one kind alone, to full precision, in a new process"
        ) from error
    parts = [(backends.mkldnn, "matmul"), (backends.mkldnn, "conv")]
    if cuda:
        parts.append((backends.cuda, "matmul"))
    if cuda and convolves:
        parts.append((backends.cudnn, "conv"))
    precisions = [getattr(getattr(place, part, None), "fp32_precision", "none") for place, part in parts]
    return matrices or convolutions or any(precision not in ("none", "ieee") for precision in precisions)


def _flushes() -> bool:
    """Return whether a product of denormal numbers becomes 0, in either precision, on any of torch's threads."""
    tiny = (
        torch.full((SHARED_OUT,), 2.0**-140, dtype=torch.float32),
        torch.full((SHARED_OUT,), 2.0**-1060, dtype=torch.float64),
    )
    return any(not bool((numbers * 0.5).all()) for numbers in tiny)


HEADS = (NormalisedHead, nn.Linear)


def rebuilt(model: nn.Module) -> nn.Module:
    """Return the float32 network that a certificate of `model` speaks of, in evaluation mode, frozen.

    Raises:
        BenchmarkError: an unknown layer (named), a model in training mode whose layers then compute something else, hooks
            that torch runs on every module, or a network that would not run in plain float32.
    """
    if hooks := [name for name, value in vars(nn.modules.module).items() if name.endswith("_hooks") and len(value)]:
        raise BenchmarkError(f"torch has {hooks[0].strip('_')} that would run in the evaluator's network too; remove them")
    if being_watched():
        raise BenchmarkError("patterns of attention are being replaced (`watching`): leave that block, then certify")
    if any(isinstance(layer, OrthogonalLinear) and layer.training for layer in model.modules()):
        raise BenchmarkError("the model is in training mode, where OrthogonalLinear rounds more; call its eval()")
    network = rebuild(*describe(model))
    full_precision(network)
    return network


def checked_copy(model: nn.Module) -> nn.Sequential:
    """Return the float64 copy of `rebuilt(model)`, a plain sequence that ends in a linear head.

    Raises:
        BenchmarkError: the model is no such sequence, or `rebuilt` refuses it.
    """
    if type(model) is not nn.Sequential or not len(model) or type(model[-1]) not in HEADS:
        raise BenchmarkError("this certificate needs a plain nn.Sequential that ends in a NormalisedHead or nn.Linear")
    network = rebuilt(model).double()
    assert isinstance(network, nn.Sequential)
    cache_weights(network)
    return network


@torch.no_grad()
def same_logits(model: nn.Module, network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the logits (n, classes) of `model`, checked to be byte-identical to those of `network`, rebuilt from it.

    Raises:
        BenchmarkError: they differ, so a certificate of the network says nothing about the model.
    """
    logits, ours = model(images.clone()), network(images)  # a model may write to its input
    if type(logits) is not torch.Tensor or logits.shape != ours.shape or logits.dtype != ours.dtype:
        kind = type(logits).__name__
        raise BenchmarkError(f"the model returns a {kind} where its layers give {tuple(ours.shape)} logits")
    if not torch.equal(logits, ours):
        raise BenchmarkError(
            f"the model's logits differ by up to {float((logits - ours).abs().max()):.2g} from those of the network that its "
            "layers and weights describe: a hook, a replaced method or an altered attribute changes what it computes; a "
            "certificate speaks of the layers alone"
        )
    return logits
