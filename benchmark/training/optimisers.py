"""The optimiser of a recipe, and sharpness-aware minimisation (SAM; Foret et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim.optimizer import ParamsT

from benchmark.specs.training import TrainingSpec


def optimizer(
    model: nn.Module,
    spec: TrainingSpec,
    device: torch.device | None = None,
    *,
    scaled: bool = False,
    captured: bool = False,
) -> torch.optim.Optimizer:
    """Return SGD (momentum 0.9) or AdamW; `weight_decay_on: weights` spares biases and parameters of one axis.

    On a GPU it is torch's fused optimiser, unless gradients are `scaled` (16-mixed). Its learning rate is a tensor there, so
    that a `captured` step follows the schedule.
    """
    on_gpu = device is not None and device.type == "cuda" and not scaled
    fused = True if on_gpu else None
    if spec.weight_decay_on == "all":
        parameters: ParamsT = list(model.parameters())
    else:
        from timm.optim.optim_factory import param_groups_weight_decay  # a slow import that few recipes need

        parameters = [g for g in param_groups_weight_decay(model, spec.weight_decay) if g["params"]]
    made: torch.optim.Optimizer
    rate, decay = spec.learning_rate, spec.weight_decay
    if spec.optimizer == "sgd":
        made = torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=decay, fused=fused)
    else:
        capturable = on_gpu and captured
        made = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, capturable=capturable, fused=fused)
    if on_gpu:
        for group in made.param_groups:
            group["lr"] = torch.tensor(rate, device=device)
    return made


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def sam_perturbation(model: nn.Module, rho: float) -> Iterator[None]:
    """Set the weights to w + rho g / ||g||_2, g their gradient, inside the context; afterwards they are exactly w again.

    SAM descends from w along the gradient of the loss inside, for which the caller clears g first. BatchNorm's running
    statistics do not change inside.
    """
    gradients = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    before = [p.detach().clone() for p, _ in gradients]
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    with torch.no_grad():
        size = torch.linalg.vector_norm(torch.stack([gradient.norm() for _, gradient in gradients]))
        for p, gradient in gradients:
            p.add_(gradient * (rho / (size + 1e-12)))
    for m in norms:
        m.track_running_stats = False
    try:
        yield
    finally:
        with torch.no_grad():
            for (p, _), old in zip(gradients, before, strict=True):
                p.copy_(old)
        for m in norms:
            m.track_running_stats = True
