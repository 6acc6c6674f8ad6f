"""Sums of weighted squares of a layer's input change, all entries sharing one budget."""

from __future__ import annotations

import torch

from benchmark.certificates.bounds.layer_bound import Reach
from benchmark.certificates.bounds.spectral import psd_norm_upper


def largest_entries(reach: Reach) -> torch.Tensor:
    """|D_i| is at most this, entry by entry: (n, *shape)."""
    rows = torch.linalg.vector_norm(reach.columns, dim=0)
    each = [size.reshape(-1, *[1] * (rows.ndim - 1)) for size in (reach.radius, reach.rho, reach.delta)]
    return torch.minimum(each[0] * rows + each[1], each[2]) * (1 + 1e-12)


def weighted_squares(weight: torch.Tensor, reach: Reach) -> torch.Tensor:
    """sum_i weight_i D_i^2 is at most this, for weights >= 0 (n, rivals, entries): (n, rivals).

    The root of the sum is ||diag(sqrt weight) (L xi + rest)||, at most radius ||diag(sqrt weight) L|| + rho max sqrt weight,
    and at most delta max sqrt weight.
    """
    rows = reach.columns.flatten(2).permute(1, 2, 0)  # (n, entries, directions)
    most = weight.amax(2).sqrt()
    if rows.shape[1] <= rows.shape[2]:
        root = weight.sqrt()
        form = root[..., None] * (rows @ rows.mT)[:, None] * root[..., None, :]
    else:
        form = torch.einsum("nup,nru,nuq->nrpq", rows, weight, rows)
    through = reach.radius[:, None] * psd_norm_upper(form).sqrt() + reach.rho[:, None] * most
    return torch.minimum(through, reach.delta[:, None] * most) ** 2 * (1 + 1e-9)
