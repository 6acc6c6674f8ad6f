"""What float32 arithmetic can do to a layer, by a-priori error analysis: `LayerBound.rounding` is made of these.

Model (Higham, Accuracy and Stability, 2.2 and 3.1), u = 2^-24: an operation gives its exact result times (1 + t), |t| <= u;
a sum of n products in any order, blocked or not, fused or not, gives sum a_i b_i (1 + t_i), |t_i| <= gamma(n) =
n u / (1 - n u); k such factors together are within gamma(k). Division, square root and their likes are within 4 u, exp
with all rescalings of a row within EXPONENTIAL (torch's vectorised exp is within 20 units in the last place). Weights that
a layer derives from its parameters are computed in float64 and rounded once (within gamma(2)). Underflow adds less than
TINY. Products in TF32, half precision or autocast are outside this model and are refused (checked_copy.py); for
attention's kernels, which may split a float32 product in three TF32 ones on a GPU, each count is taken KERNEL times.

With x' = x + D, ||D|| <= delta, a bound |fl(f)(x') - f(x')| <= gamma(k) |x'| |W| gives, by |x'| <= |x| + |D|, the norm
gamma(k) (|| |x| |W| ||_F + delta || |W| ||_2).

Range. float32 holds numbers up to 3.4e38. What real arithmetic keeps below ROOM = 1e36, partial sums in any order included,
float32 computes without overflow, since the errors above are less than the values themselves. The norms of inputs over the
ball, and parameters, are at most LARGEST = 1e7 (elsewhere a layer's rounding is infinite, or the network is refused), and
derived weights at most WIDEST = 1e11, as their layers' bounds ask. A sum of products is at most ||x|| ||w||, so at most 1e18
sqrt(inputs) and below ROOM for any network that fits a memory; so are scalings and quotients by numbers within [1e-7, 1e7].
Where a layer multiplies such sums with each other (scores, values times weights, squares of rows), its rounding is infinite
unless the bounds that it computes of them stay below ROOM. exp is of numbers at most 0 in softmax, at most 80 in Softplus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.runtime.errors import BenchmarkError

UNIT32 = 2.0**-24
EXPONENTIAL = 256 * UNIT32
TINY = 1e-20
LARGEST = 1e7
WIDEST = 1e11
ROOM = 1e36
KERNEL = 8
FLOAT64 = 1 + 1e-8  # the float64 pass around the nominal input obeys the same bounds with a unit 2^29 times smaller


def gamma(count: float) -> float:
    """gamma(n) for n rounding errors in sequence."""
    if count * UNIT32 >= 0.5:
        raise BenchmarkError(f"{count:g} roundings in sequence: float32 gives no bound; the certificate is refused")
    return count * UNIT32 / (1 - count * UNIT32)


def size(x: torch.Tensor) -> torch.Tensor:
    """Frobenius norm of each input: (n, *shape) to (n,)."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


class LinearRounding:
    """Of y = x W^T + b with W (out, in): for inputs (n, ..., in) within delta (n,), the norm of the rounding of all of y.

    gamma(in + 3): the sum of products, the bias, the weight's own rounding.
    """

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        nominal = x.abs() @ weight.abs().mT
        self.nominal = size(nominal if bias is None else nominal + bias.abs())
        self.absolute = spectral_norm_upper(weight.abs())
        self.gamma = gamma(weight.shape[1] + 3)

    def __call__(self, delta: torch.Tensor) -> torch.Tensor:
        return self.gamma * (self.nominal + delta * self.absolute) * FLOAT64 + TINY


class AttentionRounding:
    """Of concat_h(softmax(factor Q_h K_h^T / s) V_h) W_O + b_O, s = sqrt(d_h), Q = x W_Q + b_Q and so on: x (n, tokens, d),
    W (d, d); and of its sum with x where it is a residual.

    Norms over all heads. Products: Q, K, V each move by dQ = gamma (|| |x| |W_Q| + |b_Q| || + delta || |W_Q| ||). Scores move
    by dS = factor / s (dQ ||K|| + ||Q|| dK + dQ dK + gamma(8 (d_h + 4)) (||Q|| + dQ)(||K|| + dK)), all norms over the ball,
    with two roundings more where the factor is not 1, which multiplies Q.
    Subtracting the maximum, a change of base and exp move the logarithm of an unnormalised weight by at most 6 u max |S| +
    2 EXPONENTIAL. Softmax is 1/2-Lipschitz and rows of P have norm at most 1, so
      dP = (dS + tokens sqrt(heads) (6 u max |S| + 2 EXPONENTIAL)) / 2 + gamma(8 (2 tokens + 6)) sqrt(tokens heads).
    Then, with ||P_h||_2 <= sqrt(tokens), the mixed values move by
      dM = dP (||V|| + dV) + sqrt(tokens) dV + gamma(8 (2 tokens + 6)) (sqrt(tokens) + dP)(||V|| + dV),
    and the output by dM ||W_O|| + gamma(d + 3) ((||M|| + dM) || |W_O| || + ||b_O|| sqrt(tokens)), of a residual by
    u (||x'|| + (||M|| + dM) || |W_O| || + ||b_O|| sqrt(tokens)) more.

    Range (see the module's), with Q' = ||Q|| + dQ, and so on: factor Q' K', which no score exceeds before its division by
    s; m = 2 sqrt(tokens) V', since rows of what is computed of P sum to less than 2; and what the output sums,
    m || |W_O| || + ||b_O|| sqrt(tokens).

    Args:
        inputs: the layers with weight and bias (or None) that give Q, K and V; `output` likewise.
        factor: of the scores beside 1 / sqrt(d / heads).
    """

    def __init__(
        self,
        x: torch.Tensor,
        inputs: Sequence[nn.Module],
        output: nn.Module,
        heads: int,
        *,
        factor: float = 1.0,
        residual: bool = True,
    ) -> None:
        pairs = [(cast(torch.Tensor, layer.weight), cast("torch.Tensor | None", layer.bias)) for layer in inputs]
        self.linears = [LinearRounding(x, weight, bias) for weight, bias in pairs]
        self.sizes = [size(x @ weight.mT if bias is None else x @ weight.mT + bias) for weight, bias in pairs]
        self.norms = [spectral_norm_upper(weight) for weight, _ in pairs]
        weight, bias = cast(torch.Tensor, output.weight), cast("torch.Tensor | None", output.bias)
        self.output, self.output_absolute = spectral_norm_upper(weight), spectral_norm_upper(weight.abs())
        self.size, self.tokens, self.heads, self.residual = size(x), x.shape[1], heads, residual
        self.inner, self.width = weight.shape[1] // heads, x.shape[2]
        self.factor, self.divisor = factor, math.sqrt(self.inner) / factor
        self.count = KERNEL * (self.inner + 4) + (0 if factor == 1 else 2)
        self.shift = 0.0 if bias is None else float(torch.linalg.vector_norm(bias)) * math.sqrt(self.tokens)

    def __call__(self, delta: torch.Tensor) -> torch.Tensor:
        n, root = self.tokens, math.sqrt(self.tokens)
        dq, dk, dv = (linear(delta) for linear in self.linears)
        q, k, v = (own + delta * norm for own, norm in zip(self.sizes, self.norms, strict=True))
        largest = (q + dq) * (k + dk) / self.divisor
        ds = (dq * k + q * dk + dq * dk) / self.divisor + gamma(self.count) * largest
        logarithm = 6 * UNIT32 * largest + 2 * EXPONENTIAL
        sums = gamma(KERNEL * (2 * n + 6))
        dp = (ds + n * math.sqrt(self.heads) * logarithm) / 2 + sums * math.sqrt(n * self.heads)
        dm = dp * (v + dv) + root * dv + sums * (root + dp) * (v + dv)
        mixed = root * v + dm
        out = dm * self.output + gamma(self.width + 3) * mixed * self.output_absolute
        out = out + gamma(self.width + 3) * self.shift
        if self.residual:
            out = out + UNIT32 * (self.size + delta + mixed * self.output_absolute + self.shift)
        scores = torch.stack([(q + dq) * (k + dk), q + dq, k + dk]).amax(0) * max(self.factor, 1.0)
        values = 2 * root * (v + dv) * (1 + self.output_absolute) + self.shift
        return torch.where(torch.maximum(scores, values) <= ROOM, out * FLOAT64 + TINY, torch.inf)
