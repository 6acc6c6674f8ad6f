"""GloRo: its constant, its further logit by hand, its score beside the certificate, its state after a kill."""

from __future__ import annotations

import pytest
import torch
from tiny_lipschitz import convolutional
from tiny_models import grey_images
from tiny_training import blobs, run, spec
from torch import nn

from benchmark.certificates import lipschitz
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify
from benchmark.training import gloro, standard
from benchmark.training.gloro import further_logit

LABELS = torch.arange(16) % 4


def transformer() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Normalise(),
        Patchify(3),
        nn.Linear(9, 8),
        Residual(nn.Sequential(LayerProject(1.0), L2Attention(8, 2))),
        Residual(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))),
        MeanPool(),
        NormalisedHead(8, 4),
    )


def by_hand(logits: torch.Tensor, weight: torch.Tensor, move: float, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over classes + 1, image by image."""
    losses = []
    for row, label in zip(logits, labels, strict=True):
        top = int(row.argmax())
        others = [row[i] + move * (weight[top] - weight[i]).norm() for i in range(len(row)) if i != top]
        extended = torch.cat([row, torch.stack(others).max()[None]])
        losses.append(extended.logsumexp(0) - extended[label])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("eps_factor", [0.0, 0.5])
def test_the_loss_by_hand(eps_factor) -> None:
    model, images = convolutional(0), grey_images()
    objective = gloro.objective(None, radius=0.3, power_steps=100)
    objective.attach(model, images)
    objective.advance()
    constant = 1.0
    for index, shape in ((0, (1, 6, 6)), (2, (3, 6, 6)), (5, (36,))):
        x = torch.zeros(1, *shape)
        jacobian = torch.autograd.functional.jacobian(model[index], x).reshape(-1, x.numel())
        constant *= float(torch.linalg.matrix_norm(jacobian, ord=2))
    expected = by_hand(model(images), model[-1].weight, eps_factor * 0.3 * constant, LABELS)
    assert torch.allclose(objective.loss(model, images, LABELS, eps_factor), expected, rtol=1e-3)


def test_the_further_logit_is_passed_where_no_move_changes_the_class() -> None:
    """A linear network: its radius is known exactly."""
    torch.manual_seed(0)
    head, x = nn.Linear(6, 4).requires_grad_(False), torch.randn(200, 6)
    logits, top = head(x), head(x).argmax(1)
    gaps = (head.weight[top][:, None] - head.weight[None]).norm(dim=2)
    distance = ((logits.amax(1, keepdim=True) - logits) / gaps).nan_to_num(torch.inf).amin(1)
    for radius in (0.0, 0.1, 1.0):
        further = further_logit(logits, head.weight, torch.tensor(radius))
        assert torch.equal(logits.amax(1) > further + 1e-5, distance > radius + 1e-5)


@pytest.mark.parametrize("network", [convolutional, transformer])
def test_the_score_is_what_the_certificate_certifies(tmp_path, network) -> None:
    model = network()
    run(model, standard.objective(None), spec(epochs=4, batch_size=30), tmp_path / "c")
    model.requires_grad_(False)
    images, labels = blobs(2, 200)
    radii = lipschitz.certify(model, images, labels)
    radius = float(radii[radii > 0].median())
    smallest, largest = (float((radii >= factor * radius).double().mean()) for factor in (1.2, 0.999))
    score = gloro.objective(None, radius=radius).score(model, images, labels)
    assert smallest <= score <= largest  # of attention it takes fewer forms than the certificate
    assert smallest > 0
