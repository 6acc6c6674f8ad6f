"""What attention may do in a network against what of it is certified: a table and a figure.

    python measurements/attention_frontier.py [epochs] [validation images]

The track cifar10_jpeg (real CIFAR-10 images re-encoded as JPEG; its data stage has to have run), networks of one small size
trained for `epochs` epochs (2 unless given; kept in work/benchmarks), measured on validation images alone: clean accuracy,
accuracy certified at l2 0.1412, and what of clean accuracy is lost when every attention averages uniformly, is left out, or
mixes by its mean pattern over 1,000 training images, which keeps where heads look and drops what they see there, or by
another image's. Where shifts and absolute values stand in attention's place, their slopes are replaced likewise: the control.
Entropy is the mean of softmax's rows, over that of the uniform pattern. Each network has its row's recipe. Writes the figure
to measurements/frontier.svg. One thread.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save_file
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.attacks.prediction import logits
from benchmark.attacks.replaced_attention import mean_patterns, patterns, predictions_with, predictions_with_patterns
from benchmark.certificates.local import certified_at
from benchmark.data.images import load_split
from benchmark.data.tensors import tensors
from benchmark.layers.competitive_attention import Competition
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.specs import methods
from benchmark.specs.rows import Row, load_row
from benchmark.specs.training import Augmentation
from benchmark.training import margin
from benchmark.training.augment import Augment
from benchmark.training.loop import train
from benchmark.training.steps import Steps

KEPT, FIGURE = Path("work/benchmarks"), Path("measurements/frontier.svg")
RADIUS = 0.1412
TRAINING_IMAGES = 1000  # that mean patterns are of
BATCH = 250  # which divides that
GRID = {
    "network": "grid", "patch_size": 4, "width": 48, "stages": 2, "depth": 2, "attention": 2, "heads": 8, "inner": 8,
    "outputs": 256,
}  # fmt: skip
CONTENT = {"network": "content", "patch_size": 4, "width": 48, "stages": 2, "depth": 2, "last": 0, "outputs": 256}
PRICED, BLIND = "local_margin", "margin"  # objectives: whether the loss sees what attention costs of the bound


@dataclass(frozen=True)
class Network:
    name: str
    row: str
    model: dict[str, Any]
    objective: str = PRICED


def grid(name: str, content: float, objective: str = PRICED, **more: Any) -> Network:
    return Network(name, "grid_attention", {**GRID, "content": content, **more}, objective)


def lofast(name: str, **changes: Any) -> Network:
    return Network(name, "wide_margin", changes, BLIND)


def content(name: str, mixer: str, **more: Any) -> Network:
    return Network(name, "content_attention", {**CONTENT, "mixer": mixer, **more})


NETWORKS = (
    lofast("LoFAST as `wide_margin`, W_V and W_O at most 0.15"),
    lofast("the same, at most 0.5", vo_norm=0.5),
    lofast("the same, at most 1, W_Q and W_K at most 2", vo_norm=1.0, qk_norm=2.0),
    grid("grid without attention", 0.3, attention=0),
    grid("sharp places alone", 1e-6),
    grid("sharp places, content from 0.3", 0.3),
    grid("soft places, content from 0.3", 0.3, sharpness=0.5),
    grid("soft places, content from 1", 1.0, sharpness=0.5),
    grid("no places, content from 1", 1.0, sharpness=0.0),
    grid("soft places, content from 1, price unseen", 1.0, BLIND, sharpness=0.5),
    grid("soft places, content from 3, price unseen", 3.0, BLIND, sharpness=0.5),
    grid("no places, content from 3, price unseen", 3.0, BLIND, sharpness=0.0),
    content("shifts, the twin of the next", "shift"),
    content("competition over 5 places in their place", "competition"),
    content("competition also over all 16 tokens", "competition", last=2),
    content("the cone over 5 places", "cone"),
)


@dataclass(frozen=True)
class Measured:
    """Percent; what is lost in points; entropy as a share; None without attention."""

    name: str
    clean: float
    certified: float
    uniform: float | None
    none: float | None
    mean_pattern: float | None
    other_pattern: float | None
    entropy: float | None
    seconds: float


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(ROOT)
    epochs, count = [int(word) for word in sys.argv[1:]] + [2, 1000][len(sys.argv) - 1 :]
    data = load_row("cifar10_jpeg", "Havens2024LoFAST-grid_attention").data
    images, labels = (t[:count] for t in tensors(load_split(data, "validation")))
    seen = tensors(load_split(data, "train"))[0][:TRAINING_IMAGES]
    print(f"{platform.machine()}, one thread, {epochs} epochs of training, {count} validation images\n")
    print(
        "| | network | clean | certified | uniform costs | none costs | mean pattern costs | another image's costs | entropy "
        "| core-seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    found = []
    for index, network in enumerate(NETWORKS):
        model, seconds = trained(network, epochs, index)
        found.append(measured(network.name, model, images, labels, seen, seconds))
        print(f"| {len(found)} {line(found[-1])}", flush=True)
    FIGURE.write_text(figure(found))


def trained(network: Network, epochs: int, index: int) -> tuple[nn.Sequential, float]:
    """Frozen, with the processor time that its training took."""
    row = load_row("cifar10_jpeg", f"Havens2024LoFAST-{network.row}")
    settings = row.settings.model_copy(update={"model": {**row.settings.model, **network.model}})
    torch.manual_seed(0)
    model = methods.build_model(row.submission, settings, row.track)
    assert isinstance(model, nn.Sequential)
    path = KEPT / f"attention_frontier-{index}-{epochs}.safetensors"
    if not path.exists():
        started = time.process_time()
        with redirect_stdout(sys.stderr):  # where the loop shows its progress
            best = _best_weights(model, row, network.objective, epochs, path)
        best["seconds"] = torch.tensor(time.process_time() - started)
        save_file(best, path)
    weights = load_file(path)
    seconds = float(weights.pop("seconds"))
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False), seconds


def _best_weights(model: nn.Sequential, row: Row, objective: str, epochs: int, path: Path) -> dict[str, torch.Tensor]:
    assert row.settings.training is not None
    changes = {"epochs": epochs, "augmentation": Augmentation(flip=True), "closing": None}  # all are trained alike
    spec, rules = row.settings.training.model_copy(update=changes), row.track.data
    wanted = {name: spec.parameters[name] for name in ("margin", "temperature")}
    loss = (
        methods.module("Havens2024LoFAST", PRICED).objective(None, radius=RADIUS, **wanted)
        if objective == PRICED
        else margin.objective(None, **wanted)
    )
    splits = [tensors(load_split(row.data, part)) for part in ("train", "validation")]
    augment = Augment(spec.augmentation, rules.shape, rules.classes)
    fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = path.with_suffix(".checkpoint")
    steps = Steps(model, loss, spec, fabric, splits[0][0][: loss.looks_at], augment=augment)
    return train(steps, *splits, seed=0, checkpoint=checkpoint)[0]


def measured(
    name: str, model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, seen: torch.Tensor, seconds: float
) -> Measured:
    def right(predicted: torch.Tensor | None) -> float | None:
        return None if predicted is None else 100 * float((predicted == labels).double().mean())

    def lost(predicted: torch.Tensor | None) -> float | None:
        return None if (now := right(predicted)) is None else clean - now

    clean = 100 * float((logits(model, images, BATCH).argmax(1) == labels).double().mean())
    certified = 100 * float(certified_at(model, images, labels, RADIUS).double().mean())
    uniform, none = (lost(predictions_with(weights, model, images, BATCH)) for weights in ("uniform", "none"))
    own = patterns(model, images)
    if not own:
        means, _ = slopes(model, seen)
        pattern, other = (lost(slopes(model, images, given)[1]) for given in (means, None))
        return Measured(name, clean, certified, None, None, pattern, other, None, seconds)
    means, by_softmax = mean_patterns(model, seen, BATCH), not any(isinstance(m, Competition) for m in model.modules())
    pattern, other = (lost(predictions_with_patterns(given, model, images, BATCH)) for given in (means, None))
    entropies = [float(torch.special.entr(p).sum(-1).mean()) / math.log(p.shape[-1]) for p in own]
    entropy = sum(entropies) / len(own) if by_softmax else None
    return Measured(name, clean, certified, uniform, none, pattern, other, entropy, seconds)


@torch.no_grad()
def slopes(
    model: nn.Sequential, images: torch.Tensor, given: list[torch.Tensor] | None = None
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the mean slopes of the absolute values behind each shift, and the classes (n,) with `given` slopes in their
    place, or with those of the image before.
    """
    own: list[torch.Tensor] = []
    layers = [layer for layer, shift in zip(model[2:], model, strict=False) if isinstance(shift, ShiftTokens)]

    def see(layer: nn.Module, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        assert isinstance(layer, Absolute)
        own.append(inputs[0][..., : layer.folded].sign())

    def fold(layer: nn.Module, inputs: tuple[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
        assert isinstance(layer, Absolute)
        folded, rest = inputs[0].tensor_split([layer.folded], dim=-1)
        return torch.cat([folded * next(others), rest], dim=-1)

    handles = [layer.register_forward_hook(see) for layer in layers]
    model(images)
    for handle in handles:
        handle.remove()
    others = iter(given or [part.roll(1, 0) for part in own])
    handles = [layer.register_forward_hook(fold) for layer in layers]
    classes = model(images).argmax(1)
    for handle in handles:
        handle.remove()
    return [part.mean(0, keepdim=True) for part in own], classes


def line(one: Measured) -> str:
    def words(value: float | None, form: str = ".1f") -> str:
        return "" if value is None else format(value, form)

    parts = (one.uniform, one.none, one.mean_pattern, one.other_pattern)
    shares = " | ".join(words(part) for part in parts)
    return (
        f"| {one.name} | {one.clean:.1f} | {one.certified:.1f} | {shares} | {words(one.entropy, '.2f')} | {one.seconds:.0f} |"
    )


def figure(found: list[Measured]) -> str:
    """Certified accuracy over the points that uniform averaging costs (discs), and that the mean pattern costs (squares)."""
    left, top, width, height, most = 60, 20, 560, 300, 50.0
    widest = max(10.0, *(part for one in found for part in (one.uniform, one.mean_pattern) if part is not None))

    def place(x: float, y: float) -> tuple[float, float]:
        return left + max(x, 0.0) / widest * width, top + height * (1 - y / most)

    marks = []
    for number, one in enumerate(found, 1):
        for lost, shape in ((one.uniform, "disc"), (one.mean_pattern, "square")):
            if lost is None:
                continue
            x, y = place(lost, one.certified)
            drawn = (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#2266aa"/>'
                if shape == "disc"
                else f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="#cc7722"/>'
            )
            marks.append(f'{drawn}<text x="{x + 7:.1f}" y="{y + 4:.1f}">{number}</text>')
    ticks = [
        f'<text x="{left - 8}" y="{place(0, y)[1] + 4:.1f}" text-anchor="end">{y}</text>' for y in range(0, int(most) + 1, 10)
    ]
    ticks += [
        f'<text x="{place(x, 0)[0]:.1f}" y="{top + height + 16}" text-anchor="middle">{x}</text>'
        for x in range(0, int(widest) + 1, 10)
    ]
    frame = f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888888"/>'
    words = (
        f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">points of clean accuracy that replacing '
        "attention costs (blue: by uniform averaging, orange: by its mean pattern)</text>"
        f'<text x="16" y="{top + height / 2}" text-anchor="middle" transform="rotate(-90 16 {top + height / 2})">certified '
        f"at l2 {RADIUS}, %</text>"
    )
    size = f'width="{left + width + 40}" height="{top + height + 48}"'
    body = "\n".join([frame, *ticks, *marks, words])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


if __name__ == "__main__":
    main()
