"""Six digits models of nobody's library, for timing the evaluation engines on what they were not made for: plain torch.

Three vision transformers that pool the mean of their tokens (trained normally, on FGSM images of Linf 0.15, on one-step
images of l2 0.5), the normal one with its logits times 30, a CNN with batch norm, a multilayer perceptron. Weights are
kept in work/benchmarks/engines, as engine_models.py's, which see.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass

import torch
from engine_models import KEPT, data_folder
from lightning_fabric import Fabric
from safetensors.torch import load_file, save
from torch import nn
from torch.nn import functional

from benchmark.attacks import fgsm
from benchmark.data.images import load_split
from benchmark.loading.trained import tensors
from benchmark.runtime import files
from benchmark.specs.threat import Norm, ThreatModel
from benchmark.specs.training import TrainingSpec
from benchmark.training import adversarial, standard
from benchmark.training.loop import train
from benchmark.training.objective import Objective


class Block(nn.Module):
    """A pre-norm encoder block: (n, tokens, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        query, key, value = self.qkv(self.before(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, tokens, width))
        return x + self.mlp(self.after(x))


class MeanPooledViT(nn.Module):
    """8x8 grey images (n, 1, 8, 8) in [0, 1] to logits (n, 10): 16 patches of 2x2, two blocks, the mean of the tokens."""

    def __init__(self, width: int = 32, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, 2)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(images).flatten(2).mT + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class Scaled(nn.Module):
    """A model whose logits are multiplied by a number, which changes no prediction."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.factor * self.model(images)


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


@dataclass(frozen=True)
class Plain:
    """How a model is built and trained: on clean images, or on one-step images of a ball."""

    architecture: str
    norm: Norm | None = None
    eps: float = 0.0


PLAIN = {
    "plain-vit": Plain("vit"),
    "plain-vit-linf": Plain("vit", "Linf", 0.15),
    "plain-vit-l2": Plain("vit", "L2", 0.5),
    "plain-vit-times-30": Plain("vit"),
    "plain-cnn": Plain("cnn", "Linf", 0.15),
    "plain-mlp": Plain("mlp", "L2", 0.5),
}
BUILD = {"vit": MeanPooledViT, "cnn": cnn, "mlp": mlp}


def _one_step(
    threat: ThreatModel, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float
) -> torch.Tensor:
    smaller = ThreatModel(norm=threat.norm, eps=threat.eps * eps_factor)
    return fgsm.attack(model, images, labels, smaller, seed=None, step=1.25, random_start=True)


def _objective(plain: Plain) -> Objective:
    if plain.norm is None:
        return standard.objective(None)
    return adversarial.objective(functools.partial(_one_step, ThreatModel(norm=plain.norm, eps=plain.eps)))


def trained(name: str) -> nn.Module:
    """A model of PLAIN in evaluation mode, frozen; trained first where no weights are kept."""
    plain, path = PLAIN[name], KEPT / f"{name.removesuffix('-times-30')}.safetensors"
    torch.manual_seed(0)
    model = BUILD[plain.architecture]()
    if not path.exists():
        adversarially = plain.norm is not None
        spec = TrainingSpec(
            objective="adversarial" if adversarially else "standard",
            attack={"attack": "fgsm", "norm": plain.norm, "eps": plain.eps} if adversarially else None,
            warmup_epochs=8 if adversarially else 0,
            epochs=30,
            batch_size=32,
            learning_rate=0.003,
            weight_decay=0.05,
        )
        splits = tuple(tensors(load_split(data_folder(), part)) for part in ("train", "validation"))
        fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
        checkpoint = path.with_suffix(".partial")
        with contextlib.redirect_stdout(sys.stderr):
            best, _ = train(model, _objective(plain), spec, *splits, fabric=fabric, seed=0, checkpoint=checkpoint)
        files.write(path, save(best))
        checkpoint.unlink()
    model.load_state_dict(load_file(path))
    model = Scaled(model, 30.0) if name.endswith("-times-30") else model
    return model.eval().requires_grad_(False)
