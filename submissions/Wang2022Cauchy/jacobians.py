"""How much encoder blocks amplify at given tokens, by their Jacobians.

A block F has Jacobian I + J at tokens X, where J is that of the branch F(X) - X. Quantities: sigma_max(J); the residual gain
sigma_max(I + J); the logarithmic norm, the largest eigenvalue of (J + J^T) / 2; and the paper's norm bound (16),
sqrt(||J||_1 ||J||_inf) >= sigma_max(J). These are diagnostics at the clean image, never certificates: they do not hold for
the images around it and are not rounded outwards.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.linalg import LinAlgError, eigh, eigh_tridiagonal
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.runtime.errors import BenchmarkError

QUANTITIES = ("sigma_max", "residual_gain", "log_norm", "norm_bound")
ENCODER = ""  # the key of the whole encoder among the names of blocks
DENSE = 1024  # entries (tokens x width) up to which a Jacobian is formed
BATCH = 50  # images in a pass of a block
ROWS = {"cpu": 40_000, "cuda": 2**22}  # entries of the copies of an image in one pass of a block
BASIS = 2**28  # bytes of Lanczos vectors at once
STEPS = 300  # products before Lanczos gives up
TOLERANCE = 1e-5  # of the residual, relative to the largest Ritz value
AGAIN = 2  # passes of Gram-Schmidt: after one, float32 vectors are visibly not orthogonal
ADJOINT = 1e-2  # relative deviation allowed between the two products; rounding is far below

Blocks = Sequence[tuple[str, nn.Module]]
Product = Callable[[torch.Tensor], torch.Tensor]  # (n, m) to the same, map i on row i
Values = tuple[str, dict[str, float]]  # a block's name, and its values by quantity


@dataclass(frozen=True)
class Amplification:
    """The amplification of each block, in order, and of the whole encoder; every tensor is (n,) float64, NaN if unknown.

    For the encoder, norm <= product of residual gains <= exp of sum of sigma_max, which is the paper's (15).
    """

    exact: bool  # False for Lanczos: then all but the norm bound are measured lower bounds
    blocks: dict[str, dict[str, torch.Tensor]]  # by quantity
    encoder: dict[str, torch.Tensor]  # empty unless asked for and exact


def amplification(
    blocks: Blocks,
    tokens: torch.Tensor,
    *,
    quantities: Sequence[str] = QUANTITIES,
    encoder: bool = False,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Amplification:
    """Measure the Jacobian of each block at each image.

    Jacobians of at most 1,024 entries are formed, in the model's precision, whose rounding is about 1e-7 of the
    identity. For larger ones the first three quantities come from Lanczos, and the norm bound from rows that are not kept.

    Args:
        blocks: in evaluation mode, by name; each maps tokens to tokens, and the output of one is the next one's input.
        tokens: (n, tokens, width), the first block's input at n images.
        quantities: of QUANTITIES.
        encoder: whether to measure the product of the blocks' Jacobians too, where they are formed.
        seed: of the start of Lanczos.
        progress: called with the number of (image, block) pairs that are done, and of all.

    Raises:
        BenchmarkError: Lanczos met a block whose second derivative is wrong.
    """
    exact = tokens[0].numel() <= DENSE
    needed = [q for q in QUANTITIES if q in quantities or (encoder and q in ("sigma_max", "residual_gain"))]
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    done = 0
    for chunk in tokens.split(BATCH):
        for name, by_quantity in _formed(blocks, chunk, needed, encoder) if exact else _free(blocks, chunk, needed, seed):
            for quantity, value in by_quantity.items():
                values[name, quantity].append(value)
            done += name != ENCODER
            progress(done, len(tokens) * len(blocks))

    def of(name: str, quantity: str) -> torch.Tensor:
        return torch.tensor(values[name, quantity], dtype=torch.float64)

    whole = {}
    if encoder and exact:
        whole = {
            "norm": of(ENCODER, "residual_gain"),
            "product of residual gains": torch.stack([of(name, "residual_gain") for name, _ in blocks]).prod(0),
            "exp of sum of sigma_max": torch.stack([of(name, "sigma_max") for name, _ in blocks]).sum(0).exp(),
        }
    return Amplification(exact, {name: {q: of(name, q) for q in quantities} for name, _ in blocks}, whole)


def _inputs(blocks: Blocks, tokens: torch.Tensor) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Yield the name, the block and its input (n, tokens, width), in order."""
    for name, block in blocks:
        yield name, block, tokens
        with torch.no_grad():
            tokens = block(tokens)


def _formed(blocks: Blocks, tokens: torch.Tensor, quantities: Sequence[str], encoder: bool) -> Iterator[Values]:
    """Yield the values by formed Jacobians, image by image, and the encoder's after those of its blocks."""
    inputs = [*_inputs(blocks, tokens)]
    for image in range(len(tokens)):
        product: np.ndarray | None = None
        for name, block, of_block in inputs:
            rows = [part.cpu() for _, part in _rows(block, of_block[image])]
            jacobian = torch.cat(rows).to(torch.promote_types(rows[0].dtype, torch.float32)).numpy()
            yield name, {quantity: _dense(jacobian, quantity) for quantity in quantities}
            if encoder:
                product = jacobian if product is None else jacobian @ product
        if product is not None:
            yield ENCODER, {"residual_gain": _dense(product, "residual_gain")}


def _rows(block: nn.Module, tokens: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (first row, rows (r, entries)) of the whole block's Jacobian at one image's tokens (tokens, width), in order.

    A row takes a copy of the image, which was faster than `is_grads_batched`.
    """
    entries = tokens.numel()
    passes = math.ceil(entries / max(1, ROWS.get(tokens.device.type, ROWS["cpu"]) // entries))
    count = math.ceil(entries / passes)
    # the backward of MATH is faster than the fused kernels' at few tokens
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        copies = tokens.expand(count, *tokens.shape).clone().requires_grad_(True)
        out = block(copies)
        for first in range(0, entries, count):
            width = min(count, entries - first)
            cotangent = torch.zeros(count, entries, dtype=out.dtype, device=out.device)
            cotangent[:width, first : first + width].fill_diagonal_(1)
            (grad,) = torch.autograd.grad(out, copies, cotangent.view_as(out), retain_graph=True, materialize_grads=True)
            yield first, grad.flatten(1)[:width]


def _dense(jacobian: np.ndarray, quantity: str) -> float:
    """Return one quantity from a block's whole Jacobian I + J (m, m); NaN if that is not finite."""
    matrix = jacobian if quantity == "residual_gain" else jacobian - np.eye(len(jacobian), dtype=jacobian.dtype)
    size = float(np.abs(matrix).max())
    if size == 0 or not math.isfinite(size):
        return 0.0 if size == 0 else math.nan
    matrix = matrix / size  # so that no square overflows or vanishes
    if quantity == "norm_bound":
        return size * math.sqrt(float(np.abs(matrix).sum(0).max()) * float(np.abs(matrix).sum(1).max()))
    try:
        if quantity == "log_norm":
            return size * _largest((matrix + matrix.T) / 2)
        return size * math.sqrt(max(0.0, _largest(matrix.T @ matrix)))
    except LinAlgError:
        return math.nan


def _largest(symmetric: np.ndarray) -> float:
    last = len(symmetric) - 1
    try:
        values = eigh(symmetric, eigvals_only=True, subset_by_index=[last, last], driver="evr", check_finite=False)
    except LinAlgError:  # eigenvalues too close in float32, as of nearly the identity
        values = np.linalg.eigvalsh(symmetric.astype(np.float64))
    return float(values[-1])


def _free(blocks: Blocks, tokens: torch.Tensor, quantities: Sequence[str], seed: int) -> Iterator[Values]:
    """Yield the values without forming a Jacobian, block by block, in batches of images whose Lanczos vectors fit."""
    for name, block, inputs in _inputs(blocks, tokens):
        for part in inputs.split(max(1, BASIS // (inputs.element_size() * inputs[0].numel() * STEPS))):
            by_quantity = {q: _by_products(block, part, q, seed) for q in quantities if q != "norm_bound"}
            if "norm_bound" in quantities:
                bounds = [_streamed_bound(block, of_image) for of_image in part]
                by_quantity["norm_bound"] = torch.tensor(bounds, dtype=torch.float64)
            for image in range(len(part)):
                yield name, {quantity: float(values[image]) for quantity, values in by_quantity.items()}


def _by_products(block: nn.Module, tokens: torch.Tensor, quantity: str, seed: int) -> torch.Tensor:
    """Return one of the first three quantities at each image (n,), a measured lower bound; NaN without convergence."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(1, tokens[0].numel(), generator=generator).to(tokens).expand(len(tokens), -1)
    largest = largest_eigenvalue(partial(Linearised(block, tokens).symmetric, quantity), start)
    return largest if quantity == "log_norm" else largest.clamp(min=0).sqrt()


def _streamed_bound(block: nn.Module, tokens: torch.Tensor) -> float:
    """Return sqrt(||J||_1 ||J||_inf) of the branch at one image without storing J."""
    columns, largest_row = torch.zeros(tokens.numel(), dtype=torch.float64, device=tokens.device), 0.0
    for first, rows in _rows(block, tokens):
        branch = rows.double()
        branch[:, first : first + len(rows)].diagonal().sub_(1)
        columns += branch.abs().sum(0)
        row = float(branch.abs().sum(1).max())
        largest_row = row if not row <= largest_row else largest_row  # keeps NaN
    bound = math.sqrt(float(columns.max()) * largest_row)
    return bound if math.isfinite(bound) else math.nan


def largest_eigenvalue(product: Product, start: torch.Tensor) -> torch.Tensor:
    """Return a measured lower bound of each map's largest eigenvalue, (n,) float64; NaN if it did not converge.

    Lanczos with full reorthogonalisation. The largest Ritz value never exceeds the largest eigenvalue (up to rounding), and
    some eigenvalue lies within the residual of it. It has converged when the residual is at most TOLERANCE times the
    largest |Ritz value|. It belongs to the *largest* eigenvalue unless the start is almost orthogonal to its eigenvector.

    Args:
        product: n symmetric maps on m entries, each on its own row.
        start: (n, m), random, without rows of zeros.
    """
    n, m = start.shape
    steps = min(STEPS, m)
    basis = start.new_zeros(n, steps, m)
    diagonal, beside = np.zeros((n, steps)), np.zeros((n, steps))
    largest, running = np.full(n, math.nan), np.ones(n, dtype=bool)
    vector = start / start.norm(dim=1, keepdim=True)
    for k in range(steps):
        basis[:, k] = vector
        image = product(vector)
        diagonal[:, k] = (image.double() * vector.double()).sum(1).cpu().numpy()
        for _ in range(AGAIN):
            image = image - ((basis[:, : k + 1] @ image[:, :, None]).mT @ basis[:, : k + 1])[:, 0]
        length = image.norm(dim=1, keepdim=True)
        beside[:, k] = length[:, 0].double().cpu().numpy()
        for i in np.flatnonzero(running):
            value, residual, scale = _ritz(diagonal[i, : k + 1], beside[i, : k + 1])
            if not math.isfinite(value):
                running[i] = False
            elif residual <= TOLERANCE * scale:
                largest[i], running[i] = value, False
        if not running.any():
            break
        vector = torch.where(length > 0, image / length, 0.0)
    return torch.from_numpy(largest)


def _ritz(diagonal: np.ndarray, beside: np.ndarray) -> tuple[float, float, float]:
    """Return the largest Ritz value, its residual and the largest |Ritz value| after `len(diagonal)` steps."""
    if not (np.isfinite(diagonal).all() and np.isfinite(beside).all()):
        return math.nan, math.nan, math.nan
    values, vectors = eigh_tridiagonal(diagonal, beside[:-1])
    return float(values[-1]), float(beside[-1] * abs(vectors[-1, -1])), float(np.abs(values).max())


class Linearised:
    """The Jacobian I + J of a block at tokens (n, tokens, width), as n linear maps on (n, entries).

    J v is the derivative of the vjp, which is linear in its cotangent, so no forward-mode rule is needed.

    Raises:
        BenchmarkError: the block's second derivative is wrong.
    """

    def __init__(self, block: nn.Module, tokens: torch.Tensor) -> None:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            self.tokens = tokens.clone().requires_grad_(True)
            self.out = block(self.tokens)
            self.cotangent = torch.zeros_like(self.out, requires_grad=True)
            (self.pulled,) = torch.autograd.grad(
                self.out, self.tokens, self.cotangent, create_graph=True, materialize_grads=True
            )
            self._check_adjoint()

    def _check_adjoint(self) -> None:
        """Raise if <u, A A^T u> differs from |A^T u|^2: without a second derivative PyTorch may silently return zeros."""
        u = torch.randn(self.out.shape, generator=torch.Generator().manual_seed(0)).to(self.out).flatten(1)
        pulled = self.vjp(u)
        square, other = pulled.double().square().sum(1), (u.double() * self.jvp(pulled).double()).sum(1)
        if ((square - other).abs() > ADJOINT * square).any():  # False for NaN, which Lanczos detects
            raise BenchmarkError("a block cannot be differentiated twice: its second derivative is wrong")

    def jvp(self, v: torch.Tensor) -> torch.Tensor:
        """Return (I + J) v."""
        return self._gradient(self.pulled, self.cotangent, v)

    def vjp(self, u: torch.Tensor) -> torch.Tensor:
        """Return (I + J)^T u."""
        return self._gradient(self.out, self.tokens, u)

    def _gradient(self, out: torch.Tensor, by: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(out, by, v.view_as(out), retain_graph=True, materialize_grads=True)
        return gradient.flatten(1)

    def symmetric(self, quantity: str, v: torch.Tensor) -> torch.Tensor:
        """Apply the symmetric map whose largest eigenvalue is the quantity (`log_norm`) or its square."""
        if quantity == "log_norm":
            return (self.jvp(v) + self.vjp(v)) / 2 - v
        if quantity == "residual_gain":
            return self.vjp(self.jvp(v))
        branch = self.jvp(v) - v
        return self.vjp(branch) - branch
