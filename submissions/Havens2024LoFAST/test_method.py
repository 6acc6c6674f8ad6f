"""The paper's identities: Lemmas 1 and 2 against dense matrices, Proposition 1 on the network; bounds one-sidedly."""

from __future__ import annotations

import pytest
import torch

from benchmark.certificates import local, published
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.bounds.sensitivity import attention_sensitivity
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import SLLBlock, SmoothSLLBlock
from benchmark.layers.tokens import LayerProject, MeanPool, TakeToken
from benchmark.specs import methods, submissions, tracks

N, D, HEADS = 3, 4, 2


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(seed: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """One input X (1, N, D) and W_Q, W_K, W_V, W_O of two heads."""
    shapes = [(HEADS, D, D // HEADS)] * 3 + [(HEADS, D // HEADS, D)]
    return draw(seed, 1, N, D), tuple(draw(10 * seed + k, *shape) for k, shape in enumerate(shapes))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_lemma_1_zeta_is_the_norm_of_the_kronecker_sum_and_is_attained(seed, residual) -> None:
    x, (w_q, w_k, w_v, w_o) = layer(seed)
    P = torch.softmax((x @ w_q) @ (x @ w_k).mT / (D // HEADS) ** 0.5, -1)[None]
    A, eye = w_v @ w_o, torch.eye(N, dtype=torch.float64) * residual
    dense = torch.kron(eye, torch.eye(D).double()) + sum(torch.kron(P[0, h], A[h].mT.contiguous()) for h in range(HEADS))
    zeta = attention_sensitivity(x, w_q, w_k, w_v, w_o, residual=residual).linear.zeta
    assert float(zeta) == pytest.approx(float(torch.linalg.matrix_norm(dense, ord=2)), rel=1e-9)

    def delta_1(move: torch.Tensor) -> torch.Tensor:
        return (eye @ move + sum(P[0, h] @ move @ A[h] for h in range(HEADS))).flatten(-2).norm(dim=-1)

    worst = torch.linalg.svd(dense).Vh[0].reshape(N, D)
    assert float(delta_1(worst)) == pytest.approx(float(zeta), rel=1e-9)
    moves = draw(seed + 50, 500, N, D)
    assert (delta_1(moves) <= zeta * moves.flatten(1).norm(dim=1) * (1 + 1e-12)).all()


def dense_m(x: torch.Tensor, B: torch.Tensor, *, main_text: bool = False) -> torch.Tensor:
    """M of the appendix, (n^2, n d): I (x) [x_j^T B^T] + sum_i (e_i (x) I) (x) x_i^T B; or (25), x_i^T B^T in the second."""
    eye = torch.eye(N, dtype=torch.float64)
    second = x @ (B.mT if main_text else B)
    return torch.kron(eye, x @ B.mT) + sum(
        torch.kron(torch.kron(eye[:, i : i + 1], eye), second[i : i + 1]) for i in range(N)
    )


@pytest.mark.parametrize("seed", range(3))
def test_lemma_2_m_is_the_norm_of_the_score_map_and_is_attained(seed) -> None:
    x, weights = layer(seed)
    B, norms = weights[0] @ weights[1].mT, attention_sensitivity(x, *weights).m[0]
    for head in range(HEADS):
        dense, exact = dense_m(x[0], B[head]), float(norms[head])
        assert exact == pytest.approx(float(torch.linalg.matrix_norm(dense, ord=2)), rel=1e-9)

        def scores(move: torch.Tensor, b: torch.Tensor = B[head]) -> torch.Tensor:
            return move @ b @ x[0].mT + x[0] @ b @ move.mT

        move = draw(seed + 70, N, D)
        assert torch.allclose(dense @ move.flatten(), scores(move).flatten(), atol=1e-12)
        worst = torch.linalg.svd(dense).Vh[0].reshape(N, D)
        assert float(scores(worst).norm()) == pytest.approx(exact, rel=1e-9)
        xi = sum(torch.linalg.matrix_norm(y, ord=2) for y in (B[head] @ x[0].mT, x[0] @ B[head]))  # (26)
        assert exact <= float(xi) * (1 + 1e-12)


def test_equation_25_of_the_main_text_is_no_bound() -> None:
    gaps = []
    for seed in range(40):
        x, weights = layer(seed)
        B = (weights[0] @ weights[1].mT)[0]
        correct, printed = (float(torch.linalg.matrix_norm(dense_m(x[0], B, main_text=p), ord=2)) for p in (False, True))
        gaps.append(printed / correct)
    assert min(gaps) < 0.95


def model(variant: str, seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    built = methods.build(submissions.load("Havens2024LoFAST"), variant, tracks.load("digits"))
    return built.eval().requires_grad_(False)


@pytest.mark.sweep
@pytest.mark.parametrize("variant", ["as_published", "mean_pool"])
def test_proposition_1_no_image_in_the_certified_ball_changes_the_prediction(variant) -> None:
    network, images = model(variant), torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    labels = network(images).argmax(1)
    radii, ours = (certificate.certify(network, images, labels, precision=0.05) for certificate in (published, local))
    assert (radii > 0).all()
    assert (ours >= radii * 0.9).all()
    exact = checked_copy(network)
    bound = published.Published(exact, bound_network(exact, images, labels))
    limit, margins = bound.margin_drop(radii), bound.bounded.margins
    moved = images.double()
    for _ in range(5):
        moved = moved.detach().requires_grad_()
        logits = exact(moved)
        lead = logits.gather(1, labels[:, None]) - logits
        (gradient,) = torch.autograd.grad(lead.scatter(1, labels[:, None], torch.inf).amin(1).sum(), moved)
        assert (lead.detach() >= margins - limit).all()
        assert (lead.detach().scatter(1, labels[:, None], 1.0) > 0).all()
        step = -gradient / gradient.flatten(1).norm(dim=1)[:, None, None, None]
        moved = images.double() + step * radii[:, None, None, None]


def test_attention_weights_respect_their_bounds() -> None:
    for part in model("mean_pool"):
        if isinstance(part, ResidualAttention):
            for linear, bound in ((part.query, 1.0), (part.key, 1.0), (part.value, 0.25), (part.output, 0.25)):
                assert torch.linalg.matrix_norm(linear.weight.double(), ord=2) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("variant", ["as_published", "mean_pool"])
def test_projection_stands_before_the_branch_splits(variant) -> None:
    layers = list(model(variant))
    places = [i for i, part in enumerate(layers) if isinstance(part, ResidualAttention)]
    assert len(places) == 2
    for i in places:
        before = layers[i - 1]
        assert isinstance(before, LayerProject)
        assert before.radius == 1.0


def test_what_the_variants_are_made_of() -> None:
    paper, ours = (list(model(name)) for name in ("as_published", "mean_pool"))
    assert [part.radius for part in paper if isinstance(part, LayerProject)] == [1.0, 32**0.5] * 2
    assert sum(type(part) is SLLBlock for part in paper) == 3  # one of them embeds the patches
    assert sum(type(part) is SLLBlock for part in ours) == 2
    assert all(any(isinstance(part, MeanPool) for part in parts) for parts in (paper, ours))


SHAPE = {"patch_size": 4, "width": 8, "depth": 1, "heads": 2, "qk_norm": 1.0, "vo_norm": 0.5, "radius": 1.0}


def test_every_option_is_certified() -> None:
    build, data = methods.method("Havens2024LoFAST").build, tracks.load("digits").data
    options = {"pooling": "class_token", "embedding": "sll", "between": True, "bend": 0.2, "hidden": 5}
    torch.manual_seed(0)
    network, image = build(data, **SHAPE, **options).eval(), torch.rand(1, 1, 8, 8)
    assert any(isinstance(part, TakeToken) for part in network)
    blocks = [part for part in network if isinstance(part, SLLBlock)]
    assert all(type(part) is SmoothSLLBlock and len(part.bias) == 5 for part in blocks)
    assert local.certify(network, image, network(image).argmax(1), precision=0.05) > 0


@pytest.mark.parametrize("wrong", [{"pooling": "max"}, {"embedding": "conv"}, {"patch_size": 3}])
def test_an_option_that_is_none_is_refused(wrong) -> None:
    build, data = methods.method("Havens2024LoFAST").build, tracks.load("digits").data
    with pytest.raises(ValueError, match=next(iter(wrong))):
        build(data, **(SHAPE | wrong))


def test_layer_project_is_equation_29() -> None:
    x = torch.randn(2, 5, 7) * 3
    norms = x.norm(dim=-1, keepdim=True)
    expected = torch.where(norms > 1.5, 1.5 * x / norms, x)
    assert torch.allclose(LayerProject(1.5)(x), expected)
