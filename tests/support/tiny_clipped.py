"""Small networks that have a Lipschitz constant, some random and extreme, with images; and attacks on them."""

from __future__ import annotations

import torch
from tiny_networks import Draw
from torch import nn

from benchmark.evaluation.audit import lower_margins
from benchmark.evaluation.audit_layers import float64_copy
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import Patchify, Positions

EXTREMES = ("", "large weights", "tiny thresholds", "dead layer", "large biases", "repeated rows", "on the kinks")


def random_clipped_network(seed: int, extreme: str | None = None) -> tuple[nn.Sequential, torch.Tensor, str]:
    """A network of convolutions and dense layers, images (12, c, 6, 6) in [0, 1], and which extreme it is (or "")."""
    draw = Draw(seed)
    if extreme is None:
        extreme = EXTREMES[draw.integer(1, len(EXTREMES) - 1)] if draw.uniform(0, 1) < 0.5 else ""
    channels, classes = draw.integer(1, 2), draw.integer(2, 5)
    layers: list[nn.Module] = [Normalise(0.5, draw.scale(-1, 0))] if draw.uniform(0, 1) < 0.5 else []
    x = torch.rand(12, channels, 6, 6, generator=draw.generator)
    for _ in range(draw.integer(0, 2)):
        layers += _clipped(draw, _convolution(draw, layers, x), layers, x)
    layers.append(nn.Flatten())
    for _ in range(draw.integer(1 if len(layers) < 3 else 0, 2)):
        inputs, outputs = _run(layers, x).shape[1], draw.integer(3, 16)
        dense = BoundedLinear(inputs, outputs, norm=draw.scale(-1, 1)) if draw.uniform(0, 1) < 0.2 else None
        layers += _clipped(draw, dense or nn.Linear(inputs, outputs, bias=draw.uniform(0, 1) < 0.7), layers, x)
    head = NormalisedHead if draw.uniform(0, 1) < 0.3 else nn.Linear
    model = nn.Sequential(*layers, head(_run(layers, x).shape[1], classes)).eval().requires_grad_(False)
    _go_to_extreme(model, x, extreme, draw)
    if classes > 2 or draw.uniform(0, 1) < 0.5:
        model[-1].bias.sub_(0.9 * model(x).mean(0))  # several classes are predicted
    return model, x, extreme


class Sloped(nn.Module):
    """A clip that goes on with a slope of 0.1 where it is flat."""

    def __init__(self, clip: nn.Module) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return 0.9 * self.clip(z) + 0.1 * z


def sloped(model: nn.Sequential) -> nn.Sequential:
    """The network with slopes wherever it is flat, so that descent finds a way out of dead units that hide the gradient."""
    return nn.Sequential(*(Sloped(part) if isinstance(part, nn.ReLU | ClippedReLU) else part for part in model))


def broken(model: nn.Sequential, images: torch.Tensor, radii: torch.Tensor, seed: int, steps: int = 20) -> bool:
    """Whether descending the margin over some rival, in the ball of some certified image, changes a verdict: of float64 at the
    radius, or of float32 inside it. Descends the network's own margins and those of its `sloped` copy.
    """
    network, certified = float64_copy(model), radii > 0
    images, radii = images[certified], radii[certified]
    x, logits = images.double(), network(images.double())
    labels, classes = logits.argmax(1), logits.shape[1]
    for guide in (network, sloped(network)):
        for shift in range(1, classes):
            rivals = (labels + shift) % classes
            _, lowest = lower_margins(guide, x, labels, rivals, radii, steps=steps, seed=seed, box=False)
            inside = (lowest.float().double() - x).flatten(1).norm(dim=1) <= radii
            wrong = inside & (model(lowest.float()).argmax(1) != labels)
            if wrong.any() or (network(lowest).argmax(1) != labels).any():
                return True
    return False


def _run(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return nn.Sequential(*layers)(x)


def _convolution(draw: Draw, layers: list[nn.Module], x: torch.Tensor) -> nn.Module:
    channels, kernel = _run(layers, x).shape[1], draw.integer(1, 3)
    padded = "circular" if kernel == 3 and draw.uniform(0, 1) < 0.2 else "zeros"
    stride = 1 if padded == "circular" else draw.integer(1, 2)
    outputs, groups = channels * draw.integer(1, 3), channels if draw.uniform(0, 1) < 0.2 else 1
    return nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, groups=groups, padding_mode=padded)


def _clipped(draw: Draw, linear: nn.Module, layers: list[nn.Module], x: torch.Tensor) -> list[nn.Module]:
    """The layer with random weights, and what clips it."""
    for name, parameter in linear.named_parameters():
        scale = 0.3 if "bias" in name else 2 / max(1, parameter[0].numel()) ** 0.5
        parameter.data = scale * draw.normal(*parameter.shape)
    kind = draw.uniform(0, 1)
    if kind < 0.1:
        return [linear]
    if kind < 0.4:
        return [linear, nn.ReLU()]
    clip = ClippedReLU(tuple(_run([*layers, linear], x).shape[1:]))
    clip.theta.data += 0.7 * draw.normal(*clip.theta.shape)
    return [linear, clip]


def _go_to_extreme(model: nn.Sequential, x: torch.Tensor, extreme: str, draw: Draw) -> None:
    weighted = [layer for layer in model[:-1] if isinstance(layer, nn.Linear | nn.Conv2d)]
    clips = [layer for layer in model if isinstance(layer, ClippedReLU)]
    for layer in weighted:
        if extreme == "large weights":
            layer.weight.mul_(30.0)
        if extreme == "large biases" and layer.bias is not None:
            layer.bias.mul_(100.0)
        if extreme == "repeated rows":
            layer.weight.copy_(layer.weight[:1].expand_as(layer.weight))
        if extreme == "on the kinks" and layer.bias is not None:  # images of one grey: pre-activations near 0
            layer.bias.zero_()
    for clip in clips:
        if extreme == "tiny thresholds":
            clip.theta.copy_(10 ** (-8 * torch.rand(clip.theta.shape, generator=draw.generator)))
        if extreme == "on the kinks":
            clip.theta.copy_(torch.randint(-1, 2, clip.theta.shape, generator=draw.generator))
    if extreme == "dead layer" and weighted and weighted[-1].bias is not None:
        weighted[-1].bias.fill_(-100.0)
    if extreme == "on the kinks":
        x[: len(x) // 2] = 0.5


def convolutional(seed: int = 0, *, clipped: bool = False, bias: bool = True, theta: float = 0.3) -> nn.Sequential:
    """For 6x6 images of one channel and four classes."""
    torch.manual_seed(seed)

    def clip(*shape: int) -> nn.Module:
        return ClippedReLU(shape, initial=theta) if clipped else nn.ReLU()

    first = (nn.Conv2d(1, 3, 3, padding=1, bias=bias), clip(3, 6, 6))
    second = (nn.Conv2d(3, 4, 4, stride=2, padding=1, bias=bias), clip(4, 3, 3))
    dense = (nn.Flatten(), nn.Linear(36, 8, bias=bias), clip(8), nn.Linear(8, 4, bias=bias))
    return nn.Sequential(*first, *second, *dense)


def climbed(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, rival: int, radius: float) -> torch.Tensor:
    """Images of the l2 ball where logit `rival` stands high above the label's: sign-free gradient steps, projected."""
    moved = images + 0.1 * radius * torch.randn(images.shape, generator=torch.Generator().manual_seed(rival))
    for _ in range(20):
        moved = moved.detach().requires_grad_()
        logits = model(moved)
        gap = logits[:, rival] - logits.gather(1, labels[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(gap.sum(), moved)
        with torch.no_grad():
            step = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-12).reshape(-1, 1, 1, 1)
            move = moved + 0.3 * radius * step - images
            size = move.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
            moved = images + move * (radius / size.clamp(min=1e-12)).clamp(max=1)
    return moved.detach()


def grid_network(content: float = 0.5) -> nn.Sequential:
    """Two layers of grid attention among 1-Lipschitz layers, for 6x6 images of one channel and four classes."""
    torch.manual_seed(0)
    layers = [Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), Positions(9, 8), Absolute(4), ShiftTokens(3, 1)]
    layers += [GridAttention(8, 2, inner=2, side=3, content=content), Absolute(4)]
    layers += [GridAttention(8, 2, inner=2, side=3, content=content), nn.Flatten(1)]
    return nn.Sequential(*layers, NormalisedHead(72, 4))
