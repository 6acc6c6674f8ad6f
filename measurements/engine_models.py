"""Twelve small models on the digits track, for comparing the evaluation engines: six architectures, trained twice each.

    python measurements/engine_models.py [name ...]

ViT; CoViT (attention replaced by one convolution per head over the tokens); XCiT (timm's, its stem cut to 8x8); ViT with l2
attention; LoFAST; a ReLU CNN. `standard` trains as the row Dosovitskiy2021ViT-standard does (LoFAST: as its own row does),
`robust` as Wong2020Fast-linf (FGSM from a random start, Linf 0.15); the ViT and LoFAST are built as those rows are. Weights
are kept in work/benchmarks/engines and reused; delete a file to train its model anew. Prints what was trained.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import sys
import time
import warnings
from pathlib import Path

import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save
from torch import nn

from benchmark.specs import methods

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
warnings.simplefilter("ignore", FutureWarning)
warnings.simplefilter("ignore", DeprecationWarning)

from timm.models.xcit import Xcit, conv3x3

from benchmark.attacks import fgsm
from benchmark.data.images import evaluation_split, load_split
from benchmark.data.prepare import prepare
from benchmark.data.tensors import Split, tensors
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.normalise import Normalise
from benchmark.runtime import files
from benchmark.runtime.torch_setup import set_up
from benchmark.specs import submissions, tracks
from benchmark.specs.data import DataSpec
from benchmark.specs.submission import VariantOnTrack
from benchmark.specs.threat import ThreatModel
from benchmark.specs.training import TrainingSpec
from benchmark.training import adversarial, margin, standard
from benchmark.training.loop import train
from benchmark.training.objective import Objective, accuracy
from benchmark.training.steps import Steps

KEPT = Path("work/benchmarks/engines")
TRACK = "digits"
ARCHITECTURES = ("vit", "covit", "xcit", "l2", "lofast", "cnn")
NAMES = tuple(f"{architecture}-{kind}" for architecture in ARCHITECTURES for kind in ("standard", "robust"))
WIDTH, HEADS = 32, 4


class ConvolvedTokens(nn.Module):
    """CoViT's stand-in for attention: one convolution per head over the token sequence, then a linear projection.

    (n, tokens, width) to the same. Each head convolves its own slice of the channels, kernel 3, zero padding.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.Conv1d(width, width, 3, padding=1, groups=heads)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.heads(x.mT).mT)


def build(architecture: str, data: DataSpec) -> nn.Module:
    """An untrained model: images (n, c, h, w) in [0, 1] to logits (n, classes)."""
    if architecture == "lofast":
        return methods.build(submissions.load("Havens2024LoFAST"), "mean_pool", tracks.load(TRACK))
    if architecture == "xcit":
        return nn.Sequential(Normalise(), _xcit(data))
    if architecture == "cnn":
        convolutions: list[nn.Module] = []
        for inputs, outputs, stride in ((data.shape[0], 16, 1), (16, 32, 2), (32, 32, 2)):
            convolutions += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.ReLU()]
        side = math.ceil(math.ceil(data.shape[1] / 2) / 2)
        return nn.Sequential(Normalise(), *convolutions, nn.Flatten(), nn.Linear(32 * side**2, data.classes))
    model = methods.build(submissions.load("Dosovitskiy2021ViT"), "standard", tracks.load(TRACK))
    for block in model[1].blocks:
        if architecture == "covit":
            block.attn = ConvolvedTokens(WIDTH, HEADS)
        if architecture == "l2":
            block.attn = L2Attention(WIDTH, HEADS)
    if architecture == "covit":
        model[1].global_pool = "avg"  # as the paper pools: two blocks show the class token two other tokens
    return model


def _xcit(data: DataSpec) -> Xcit:
    """Two cross-covariance blocks and one of class attention; the stem stops at 4x4 tokens.

    Initial weights are PyTorch's, as the ViT's are: timm's normal of deviation 0.02 trains slowly at this width.
    """
    side = data.shape[1]
    model = Xcit(side, 8, data.shape[0], data.classes, "token", WIDTH, 2, HEADS, cls_attn_layers=1)
    model.patch_embed.proj = nn.Sequential(conv3x3(data.shape[0], WIDTH // 2, 1), nn.GELU(), conv3x3(WIDTH // 2, WIDTH, 2))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    return model


def recipe(name: str) -> tuple[TrainingSpec, Objective]:
    """How a model of NAMES is trained."""
    architecture, kind = name.split("-")
    if kind == "robust":
        return _row("Wong2020Fast", "linf").training, adversarial.objective(_fgsm)
    if architecture == "lofast":
        spec = _row("Havens2024LoFAST", "mean_pool").training
        return spec, margin.objective(None, **spec.parameters)
    return _row("Dosovitskiy2021ViT", "standard").training, standard.objective(None)


def _row(submission: str, variant: str) -> VariantOnTrack:
    return submissions.settings(submissions.load(submission), variant, TRACK)


def _fgsm(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
    spec = _row("Wong2020Fast", "linf").training.attack
    assert spec is not None
    threat = ThreatModel(norm=spec.norm, eps=spec.eps * eps_factor)
    return fgsm.attack(model, images, labels, threat, seed=None, **spec.parameters)


def evaluation_images(count: int) -> Split:
    """The first `count` of the track's evaluation images, (n, 1, 8, 8) float32 in [0, 1], and their labels (n,)."""
    images, labels = tensors(evaluation_split(data_folder(), tracks.load(TRACK).evaluation))
    return images[:count], labels[:count]


def data_folder() -> Path:
    """The track's prepared data, checked against its pinned hashes."""
    folder = KEPT / "data"
    if not (folder / "data.json").exists():
        prepare(tracks.load(TRACK).data, folder)
    return folder


def trained(name: str, seed: int = 0) -> nn.Module:
    """A model of NAMES in evaluation mode, frozen; trained first where no weights are kept."""
    path, track = KEPT / f"{name}.safetensors", tracks.load(TRACK)
    torch.manual_seed(seed)
    model = build(name.split("-")[0], track.data)
    if not path.exists():
        spec, objective = recipe(name)
        checkpoint, folder = path.with_suffix(".partial"), data_folder()
        splits = tensors(load_split(folder, "train")), tensors(load_split(folder, "validation"))
        fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
        with contextlib.redirect_stdout(sys.stderr):
            steps = Steps(model, objective, spec, fabric, splits[0][0][:1])
            best, _ = train(steps, *splits, seed=seed, checkpoint=checkpoint)
        files.write(path, save(best))
        checkpoint.unlink()
    model.load_state_dict(load_file(path))
    return model.eval().requires_grad_(False)


def chosen(names: list[str] | None, limit: int | None = None) -> list[str]:
    """The names asked for (none: all), at most `limit`; ends the script for one that is unknown."""
    unknown = sorted(set(names or ()) - set(NAMES))
    if unknown:
        sys.exit(f"error: no model {', '.join(unknown)}; known: {', '.join(NAMES)}")
    return list(names or NAMES)[:limit]


def main() -> None:
    wanted = chosen(sys.argv[1:])
    set_up("cpu")
    track = tracks.load(TRACK)
    images, labels = evaluation_images(track.evaluation.images)
    validation = tensors(load_split(data_folder(), "validation"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread; digits, seed 0\n")
    print(f"| model | parameters | clean, of {len(labels)} | validation % | seconds, with training if it was needed |")
    print("|---|---|---|---|---|")
    for name in wanted:
        started = time.perf_counter()
        model = trained(name)
        seconds = time.perf_counter() - started
        clean = round(accuracy(model, images, labels) * len(labels))
        size = sum(parameter.numel() for parameter in model.parameters())
        kept = 100 * accuracy(model, *validation)
        print(f"| {name} | {size:,} | {clean} | {kept:.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
