"""Sums of weighted squares of a layer's input change, all entries sharing one budget."""

from __future__ import annotations

import torch

from benchmark.certificates.bounds.layer_bound import PerturbationSet
from benchmark.certificates.bounds.spectral import psd_norm_upper


def largest_entries(perturbation: PerturbationSet) -> torch.Tensor:
    """|D_i| is at most this, entry by entry: (n, *shape)."""
    rows = torch.linalg.vector_norm(perturbation.columns, dim=0)
    each = [
        size.reshape(-1, *[1] * (rows.ndim - 1)) for size in (perturbation.radius, perturbation.rho, perturbation.delta)
    ]
    return torch.minimum(each[0] * rows + each[1], each[2]) * (1 + 1e-12)


def weighted_squares(weight: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
    """sum_i weight_i D_i^2 is at most this, for weights >= 0 (n, rivals, entries): (n, rivals).

    The root of the sum is ||diag(sqrt weight) (L xi + rest)||, at most radius ||diag(sqrt weight) L|| + rho max sqrt weight,
    and at most delta max sqrt weight.
    """
    rows = perturbation.columns.flatten(2).permute(1, 2, 0)  # (n, entries, directions)
    most = weight.amax(2).sqrt()
    if rows.shape[1] <= rows.shape[2]:
        root = weight.sqrt()
        form = root[..., None] * (rows @ rows.mT)[:, None] * root[..., None, :]
    else:
        form = torch.einsum("nup,nru,nuq->nrpq", rows, weight, rows)
    through = perturbation.radius[:, None] * psd_norm_upper(form).sqrt() + perturbation.rho[:, None] * most
    return torch.minimum(through, perturbation.delta[:, None] * most) ** 2 * (1 + 1e-9)
