"""Part `engines` of gpu.py: AutoAttack's standard version on a DeiT-Ti/4 at Linf 8/255, by the fast engine and the authors'.

    python measurements/gpu_engines.py [--device cpu --images 8 --few 4 --train 5]

The network is trained against FGSM first, for `--train` seconds, so that images are left to attack. Then both engines on the
same `--few` images, all in one batch, verdicts compared; seconds of AutoAttack on 1,000 images (the aim is 60), or half of
them where time is short; and, where time is left, certified radii of another network and verdicts against the CPU's.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import torch
from gpu_common import left, row
from gpu_throughput import EPS, Case, compiling
from lightning_fabric import Fabric
from torch import nn

from benchmark.attacks.prediction import predict
from benchmark.certificates import local
from benchmark.data.images import evaluation_split, load_split
from benchmark.data.prepare import prepare
from benchmark.data.tensors import tensors
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.runtime import errors
from benchmark.runtime.torch_setup import set_up, stop_filling
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.data import DataSpec
from benchmark.specs.training import Augmentation
from benchmark.training.augment import Augment
from benchmark.training.capture import CudaRecorder
from benchmark.training.fitting import training_attack, training_objective
from benchmark.training.steps import Steps

warnings.simplefilter("ignore", FutureWarning)
DATA = Path("work/gpu/cifar10_jpeg")
SAMPLE, CERTIFIED = 24, 4  # images on which the two devices are compared, by attacks and by certificates


def trained(device: torch.device, seconds: float, data: DataSpec) -> nn.Module:
    """The DeiT-Ti/4, trained against FGSM for so long after its steps were captured, frozen."""
    case = Case("DeiT-Ti/4", "fgsm", 256, "bf16-mixed")
    spec = case.spec.model_copy(update={"learning_rate": 1e-3, "schedule": "cosine", "warmup_epochs": 0})
    fabric = Fabric(accelerator=device.type, devices=1, precision="bf16-mixed")
    recorder = CudaRecorder(device) if device.type == "cuda" else None
    model, attack = case.built(), training_attack(spec.attack)
    images, labels = (t.to(device) for t in tensors(load_split(DATA, "train")))
    augment = Augment(Augmentation(crop=4, flip=True), data.shape, data.classes)
    objective = training_objective(spec, attack)
    with compiling(False):  # which takes longer than the training
        steps = Steps(model, objective, spec, fabric, images[:1].cpu(), augment=augment, recorder=recorder)
    share = len(labels) if device.type == "cuda" else 64
    begun = time.perf_counter()
    first = min(4096, share)
    steps.epoch(images[:first], labels[:first], 0, 1)  # captures
    started = time.perf_counter()
    steps.epoch(images[:share], labels[:share], 0, 2)
    once = time.perf_counter() - started
    epochs = max(1, int(seconds / once))
    warm = epochs // 5
    steps.spec = spec.model_copy(update={"epochs": epochs, "warmup_epochs": warm, "rate_warmup_epochs": warm // 2})
    started = time.perf_counter()
    for epoch in range(epochs):
        loss = steps.epoch(images[:share], labels[:share], epoch, 0)
    row(
        "network", epochs=epochs, seconds=round(time.perf_counter() - started, 1), loss=round(loss, 3),
        images_a_second=round(epochs * share / (time.perf_counter() - started)), before=round(started - begun, 1),
    )  # fmt: skip
    return model.eval().requires_grad_(False)


def attacked(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, engine: str) -> tuple[torch.Tensor, float]:
    """Which images stand, and the seconds."""
    started = time.perf_counter()
    found = auto_attack(model, images, labels, norm="Linf", eps=EPS, engine=engine, batch_size=len(images), progress=False)
    seconds = time.perf_counter() - started
    row(
        "AutoAttack", engine=engine, device=str(next(model.parameters()).device), images=len(images),
        robust=int(found.robust.sum()), seconds=round(seconds, 1),
        after=", ".join(f"{name} {count}" for name, count in found.remaining.items()),
    )  # fmt: skip
    return found.robust, seconds


def certified(images: torch.Tensor, device: torch.device) -> None:
    torch.manual_seed(0)
    network = methods.build(submissions.load("Havens2024LoFAST"), "wide_margin", tracks.load("cifar10_jpeg"))
    network = network.eval().requires_grad_(False)
    labels = predict(network, images, torch.zeros(len(images), dtype=torch.long), len(images)).prediction
    here = local.certify(network, images, labels)
    there = local.certify(network.to(device), images.to(device), labels.to(device)).cpu()
    apart = float(((here - there).abs() / here.clamp(min=1e-12)).max())
    row("certified radii", images=len(images), largest=float(here.max()), relative_difference=apart)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--few", type=int, default=64)
    parser.add_argument("--train", type=float, default=40.0)
    given = parser.parse_args()
    device, track = set_up(given.device), tracks.load("cifar10_jpeg")
    stop_filling()
    if not (DATA / "data.json").exists():
        prepare(track.data, DATA)
    model = trained(device, min(given.train, max(left() / 8, 1)), track.data)
    images, labels = tensors(evaluation_split(DATA, track.evaluation))
    images, labels = images[: given.images], labels[: given.images]
    correct = predict(model, images.to(device), labels.to(device), 200).correct.cpu()
    row("network", right_when_clean=int(correct.sum()), images=len(images))
    few = slice(given.few)
    fast, seconds = attacked(model, images[few], labels[few], "fast")
    authors, longer = attacked(model, images[few], labels[few], "reference")
    row(
        "engines", images=len(fast), same_verdict=int((fast == authors).sum()), times_as_fast=round(longer / seconds, 1)
    )  # fmt: skip
    many = given.images if left() > 90 else given.images // 2
    robust, _ = attacked(model, images[:many], labels[:many], "fast")
    if left() > 30:
        certified(images[:CERTIFIED], device)
    if left() > 150 and device.type != "cpu":
        own, _ = attacked(model.cpu(), images[:SAMPLE], labels[:SAMPLE], "fast")
        row("devices", images=len(own), same_verdict=int((own == robust[:SAMPLE]).sum()))


if __name__ == "__main__":
    errors.run(main)
