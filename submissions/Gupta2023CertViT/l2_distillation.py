"""L2 attention learns the dot-product attention of a trained network (Gupta & Verma 2023, section 4.2 and Table 10, "L2
adaptation"; the layer of Kim et al. 2021), layer by layer and then as a whole network.

All weights outside attention are the trained network's (counterparts.py). Each attention layer is fitted alone to the
trained layer's outputs, on the tokens that the trained layer receives for training images:
  1. Queries: dot-product scores are x_i S x_j^T, S = f W_Q W_K^T / s with scale f / s. L2 scores are 2 x_i W W^T x_j^T / s,
     but for terms of one token alone. So W W^T is the part of f (W_Q W_K^T + W_K W_Q^T) / 4 on its largest positive
     eigenvalues, at most width / heads. Biases of queries and keys are left out. Position biases, which are added to both
     scores, start as the trained layer's if windows have one size.
  2. Values: X A_h W_V,h depends on X W_Q,h alone, so any W_V,h with a regular W_Q,h^T W_V,h will do; W_V,h is the orthonormal
     factor of W_Q,h. W_O is then the least squares solution, in float64, for the layer's outputs (`RIDGE`).
  3. Adam on all weights of the layer by the mean squared error, then W_O by least squares again. A result worse than the
     start is dropped.
At the end all weights learn to match the trained network's class probabilities, by their Kullback-Leibler divergence.

The network stays in evaluation mode, without dropout. If it lacks the LayerNorm that the trained one has before attention,
layers learn from tokens that they will not meet; only the end repairs that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from benchmark.layers.attention import ResidualAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_weights import attention_weights
from benchmark.layers.attention_window import L2WindowAttention, WindowAttention
from benchmark.runtime.errors import BenchmarkError, said
from benchmark.training.objective import Count, Positive
from benchmark.training.preparation import History, Place, Tensors

from .attention_inputs import in_batches, layer_and_inputs
from .counterparts import counterparts

OTHER_ARCHITECTURE = True
RIDGE = 1e-3  # relative to the mean squared feature; keeps W_O small where features hardly differ
From0 = Annotated[int, Field(ge=0)]


def prepare(
    model: nn.Module,
    start: nn.Module,
    train_split: tuple[Tensor, Tensor],
    place: Place,
    *,
    layer_epochs: From0 = 5,
    epochs: From0 = 5,
    learning_rate: Positive = 1e-3,
    batch_size: Count = 64,
    samples: From0 = 0,
) -> dict[str, JsonValue]:
    """Give `model` the weights of `start`, and fit its attention layers to those of `start`.

    Args:
        layer_epochs: for each attention layer alone; 0 leaves it at its start.
        epochs: for the whole network at the end; with 0 all weights outside attention are byte-identical to `start`.
        learning_rate: Adam's largest, in both.
        samples: training images, drawn by the place's seed; 0 for all.

    Returns:
        Each attention layer's relative error (norm of the difference over norm of the trained outputs, all images) at its
        start and after its fit; parameters of `start` without a counterpart; and, before and after the end, the share of
        training images on which both networks agree and their mean divergence.

    Raises:
        BenchmarkError: networks that do not match, by name, or a fit that is not finite.
    """
    parts = counterparts(start, model)
    model.eval()
    state = model.state_dict()
    with torch.no_grad():
        for old, new in parts.others:
            state[new].copy_(start.state_dict()[old].reshape(state[new].shape))
    images = place.drawn(train_split[0], samples) if samples else train_split[0]
    layers: list[JsonValue] = []
    for number, (old, new) in enumerate(parts.attention, start=1):
        student = model.get_submodule(new)

        def make(old: str = old, student: nn.Module = student) -> tuple[Tensors, History]:
            teacher, x = layer_and_inputs(start, old, images, batch_size)
            history = LayerFit(teacher, student, x, batch_size).run(layer_epochs, learning_rate, place.seed)
            return dict(student.state_dict()), history

        try:
            tensors, history = place.kept(f"attention-{number}", make)
        except BenchmarkError as error:
            raise BenchmarkError(f"{new}, for the trained network's {old}: {error}") from None
        student.load_state_dict(tensors)
        place.say(f"{new}: relative error {history['before']:.3g} to {history['after']:.3g}")
        layers.append({"layer": new, "of": old, **history})
    tensors, history = place.kept(
        "all-layers", lambda: _match_network(model, start, images, epochs, learning_rate, batch_size, place.seed)
    )
    model.load_state_dict(tensors)
    place.say(f"the networks agree on {history['agreement_after']:.1%} of the training images")
    return {"layers": layers, "left_out": list(parts.left_out), "network": history}


def _learn(
    module: nn.Module, loss: Callable[[Tensor], Tensor], count: int, epochs: int, batch_size: int, rate: float, seed: int
) -> None:
    """Run Adam on all parameters that learn, by the `loss` of a batch's indices.

    The rate rises over the first fifth and falls along a cosine to 0: full first steps would undo the least squares.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        return
    optimizer, generator = torch.optim.Adam(parameters, lr=rate), torch.Generator().manual_seed(seed)
    order = [batch for _ in range(epochs) for batch in torch.randperm(count, generator=generator).split(batch_size)]
    for step, batch in enumerate(order):
        rise = min(1.0, 5 * (step + 1) / len(order))
        optimizer.param_groups[0]["lr"] = rate * rise * (1 + math.cos(math.pi * step / len(order))) / 2
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()


class LayerFit:
    """The fit of a student layer to a teacher's outputs for tokens x (n, tokens, width).

    L2 attention, with or without windows, takes steps 1 to 3 of the file's docstring; any other layer step 3 without least
    squares.
    """

    def __init__(self, teacher: nn.Module, student: nn.Module, x: Tensor, batch_size: int) -> None:
        if isinstance(teacher, ResidualAttention):
            raise BenchmarkError("ResidualAttention adds its input, which the layer here is not to learn")
        self.teacher, self.student, self.x, self.batch_size = teacher, student, x, batch_size
        with torch.no_grad():
            try:
                expected, given = teacher(x[:1]).shape, student(x[:1]).shape
            except (RuntimeError, ValueError) as error:  # torch's for widths, a layer's for tokens
                raise BenchmarkError(f"tokens {tuple(x.shape[1:])} do not fit it ({said(error)})") from None
        if given != expected:
            raise BenchmarkError(f"outputs are {tuple(expected[1:])} there and {tuple(given[1:])} here")
        content = student.content if isinstance(student, L2WindowAttention) else student
        self.content = content if type(content) is L2Attention else None

    def run(self, epochs: int, rate: float, seed: int) -> History:
        """Fit the layer; return its relative errors at the start and at the end."""
        if self.content is not None:
            self._start(self.content)
            self._solve_output(self.content)
        before = self._error()
        started = {name: tensor.clone() for name, tensor in self.student.state_dict().items()}
        _learn(self.student, self._loss, len(self.x), epochs, self.batch_size, rate, seed)
        if self.content is not None:
            self._solve_output(self.content)
        after = self._error()
        if not after < before:
            self.student.load_state_dict(started)
        return {"before": before, "after": min(after, before)}

    def _loss(self, batch: Tensor) -> Tensor:
        x = self.x[batch.to(self.x.device)]
        with torch.no_grad():
            target = self.teacher(x)
        return (self.student(x) - target).square().mean() / target.square().mean().clamp(min=1e-30)

    @torch.no_grad()
    def _error(self) -> float:
        parts = torch.zeros(2, dtype=torch.float64)
        for x in self.x.split(self.batch_size):
            target = self.teacher(x).double()
            parts += torch.stack([(self.student(x) - target).square().sum(), target.square().sum()]).cpu()
        error = float((parts[0] / parts[1].clamp(min=1e-300)).sqrt())
        if not math.isfinite(error):
            raise BenchmarkError("the fit is not finite; lower the learning rate")
        return error

    @torch.no_grad()
    def _start(self, content: L2Attention) -> None:
        tables = [part.bias_table for part in (self.teacher, self.student) if isinstance(part, WindowAttention)]
        if len(tables) == 2 and tables[0].shape == tables[1].shape:
            tables[1].copy_(tables[0])
        (trained,) = attention_weights(self.teacher)
        shapes = trained.query.shape, content.head_weights()[0].shape
        if shapes[0] != shapes[1]:
            sizes = [f"{heads} heads of {inner} by {width}" for heads, width, inner in shapes]
            raise BenchmarkError(f"queries are {sizes[0]} there and {sizes[1]} here")
        query = trained.query.double()
        if trained.key is not None:
            factor = float(getattr(getattr(self.teacher, "content", self.teacher), "factor", 1.0))
            products = factor * query @ trained.key.double().mT / 4
            values, vectors = torch.linalg.eigh(products + products.mT)  # ascending
            inner = query.shape[2]
            query = vectors[..., -inner:] * values[..., None, -inner:].clamp(min=0).sqrt()
        left, _, right = torch.linalg.svd(query, full_matrices=False)
        for linear, by_head in ((content.query, query), (content.value, left @ right)):
            linear.weight.copy_(by_head.transpose(0, 1).flatten(1).mT)

    @torch.no_grad()
    def _solve_output(self, content: L2Attention) -> None:
        """Set W_O by least squares, then scale W_V and W_O to equal norms, which keeps the function."""
        width = content.output.in_features
        gram, cross = (self.x.new_zeros(width, width, dtype=torch.float64) for _ in range(2))
        mixed: list[Tensor] = []
        with content.output.register_forward_pre_hook(lambda _module, inputs: mixed.append(inputs[0])):
            for x in self.x.split(self.batch_size):
                self.student(x)
                target, features = self.teacher(x), mixed.pop().flatten(0, 1).double()
                if isinstance(self.student, L2WindowAttention):
                    target = self.student.windows(target)
                gram += features.mT @ features
                cross += features.mT @ target.flatten(0, 1).double()
        ridge = RIDGE * gram.diagonal().mean().clamp(min=1e-30)
        solved = torch.linalg.solve(gram + ridge * torch.eye(width, dtype=gram.dtype, device=gram.device), cross)
        share = (solved.norm() / content.value.weight.norm()).clamp(min=1e-6).sqrt()
        content.output.weight.copy_(solved.mT / share)
        content.value.weight.mul_(share)


def _match_network(
    model: nn.Module, start: nn.Module, images: Tensor, epochs: int, rate: float, batch_size: int, seed: int
) -> tuple[Tensors, History]:
    target = in_batches(start, images, batch_size).log_softmax(1)

    def divergence(logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.kl_div(logits.log_softmax(1), target, log_target=True, reduction="batchmean")

    def loss(batch: Tensor) -> Tensor:
        batch = batch.to(images.device)
        return divergence(model(images[batch]), target[batch])

    def measured() -> tuple[float, float]:
        logits = in_batches(model, images, batch_size)
        return float((logits.argmax(1) == target.argmax(1)).double().mean()), float(divergence(logits, target))

    before = measured()
    _learn(model, loss, len(images), epochs, batch_size, rate, seed)
    after = measured()
    if not math.isfinite(after[1]):
        raise BenchmarkError("the whole network's fit is not finite; lower the learning rate")
    return dict(model.state_dict()), {
        "agreement_before": before[0],
        "divergence_before": before[1],
        "agreement_after": after[0],
        "divergence_after": after[1],
    }
