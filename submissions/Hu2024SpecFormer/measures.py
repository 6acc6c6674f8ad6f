"""What the studies of this submission measure of a trained network: its features, clean and attacked, and the bounds of its
attention layers beside what they bound.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.manifold import TSNE
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import nn

from benchmark.attacks import pgd
from benchmark.certificates.bounds.attention_ascent import sphere_ascent
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.certificates.unsound_paper_formula import specformer_constant
from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_weights import ROLES, AttentionWeights
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

from .gated import GatedAttention
from .head_bounds import ball_norm_upper, point_norm_upper

FOLDS = 5
PENALISED = ("query", "key", "value")  # whose mean is `mean`
Points = dict[str, list[tuple[float, float]]]


def features(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    eps: float,
    steps: int = 20,
    classes: int = 5,
) -> dict[str, float | Points]:
    """t-SNE of what the head is given, clean and after PGD at Linf `eps`, and the A-distance between the two.

    The A-distance is 2 (1 - 2 err), err that of a linear SVM that tells clean from attacked features, cross-validated in five
    parts; an image and its attacked self stand in the same part (Ben-David et al. 2006). At most 2; around 0, or below by
    chance, where the SVM does no better than a coin.

    Args:
        classes: of how many labels points are drawn; all count for the distance.
    """
    threat = ThreatModel(norm="Linf", eps=eps)
    moved = pgd.attack(model, images, labels, threat, seed=seed, steps=steps, step_size=eps / 4)
    both = torch.cat([_before_the_head(model, images), _before_the_head(model, moved)]).double().numpy()
    attacked = np.repeat([0, 1], len(images))
    image = np.tile(np.arange(len(images)), 2)
    svm = make_pipeline(StandardScaler(), SVC(kernel="linear"))
    hits = cross_val_score(svm, both, attacked, groups=image, cv=GroupKFold(FOLDS))
    places = TSNE(init="pca", random_state=seed, perplexity=30.0).fit_transform(both)
    points: Points = {}
    for label in range(classes):
        for kind, name in ((0, "clean"), (1, "attacked")):
            chosen = (attacked == kind) & (labels.numpy()[image] == label)
            points[f"{label}, {name}"] = [(float(x), float(y)) for x, y in places[chosen]]
    return {"t-SNE": points, "A-distance": 2 * (1 - 2 * (1 - float(hits.mean())))}


def _before_the_head(model: nn.Sequential, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model[:-1](images)


def attention_bounds(
    model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, *, seed: int, radius: float, starts: int = 2
) -> dict[str, list[float]]:
    """Each dot-product attention layer by itself, as a map of the tokens that it is given: medians over images, curves over
    the layer's number.

    At the clean tokens: the norm of its Jacobian, and the sound point form. Over the ball of `radius` (l2, of tokens): what
    gradient ascent moves the output by, over the radius; this benchmark's bound of that; the sound ball form; and Theorem
    4.3, which is no bound where tokens and radius are short. Heads are joined by the root of the sum of their squares and the
    norm of W_O. And the bound over the ascent, largest over images.
    """
    if any(isinstance(layer, GatedAttention) for layer in model.modules()):
        raise BenchmarkError("measure attention_bounds: gated attention has no bound here")
    network = nn.Sequential(*model).double().eval()
    found = [_one_layer(layer, x, radius, starts) for layer, x in _inputs(network, images.double())]
    network.float()
    if not found:
        raise BenchmarkError("measure attention_bounds: the model has no dot-product attention of benchmark/layers")
    curves = {name: [float(layer[name].median()) for layer in found] for name in found[0]}
    worst = [float((layer["bound of this benchmark"] / layer["ascent"]).max()) for layer in found]
    return {"x": [float(n) for n in range(1, len(found) + 1)], **curves, "largest bound over ascent": worst}


def attention_use(model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, *, seed: int) -> dict[str, float]:
    """What dot-product attention is for: the share of predictions that change, and the accuracy left, where every layer
    averages the values of all tokens alike (scores 0); where its branch is dropped; and where every branch is, the MLPs' too.
    """
    if not all(isinstance(branch[-1], SelfAttention | nn.Linear) for branch in _branches(model)):
        raise BenchmarkError("measure attention_use: only networks of plain dot-product attention are known here")
    clean = model(images).argmax(1)
    found: dict[str, float] = {}
    for name, kinds in (("uniform", None), ("no attention", (SelfAttention,)), ("no branch", (SelfAttention, nn.GELU))):
        network = copy.deepcopy(model)
        for branch in _branches(network):
            last = branch[-1]
            if kinds is None and isinstance(last, SelfAttention):
                for part in (last.query, last.key):
                    nn.init.zeros_(part.weight)
                    if part.bias is not None:
                        nn.init.zeros_(part.bias)
            elif kinds is not None and any(isinstance(layer, kinds) for layer in branch):
                output = last.output if isinstance(last, SelfAttention) else last
                nn.init.zeros_(output.weight)
                nn.init.zeros_(output.bias)
        left = network(images).argmax(1)
        found[f"{name}: predictions changed"] = float((left != clean).double().mean())
        found[f"{name}: accuracy"] = float((left == labels).double().mean())
    return found


def _branches(network: nn.Sequential) -> list[nn.Sequential]:
    return [layer.body for layer in network if isinstance(layer, Residual | WeightedResidual)]


def _inputs(network: nn.Sequential, images: torch.Tensor) -> list[tuple[SelfAttention, torch.Tensor]]:
    """The attention layers and the tokens that they get."""
    seen: list[tuple[SelfAttention, torch.Tensor]] = []
    layers = [layer for layer in network.modules() if isinstance(layer, SelfAttention)]
    hooks = [layer.register_forward_pre_hook(lambda layer, given: seen.append((layer, given[0]))) for layer in layers]
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    return seen


def _one_layer(layer: SelfAttention, x: torch.Tensor, radius: float, starts: int) -> dict[str, torch.Tensor]:
    """(n,) each."""
    if layer.query.bias is not None:
        raise BenchmarkError("measure attention_bounds: point and ball form are of queries without biases; use backbone vit")
    bound = exact_layer_bound(layer, x)
    delta = torch.full((len(x),), radius, dtype=torch.float64)
    clean = layer(x)
    moved = sphere_ascent(lambda z: torch.linalg.vector_norm((layer(z) - clean).flatten(1), dim=1), x, radius, starts=starts)
    query, key, value, output = layer.head_weights()
    after = spectral_norm_upper(output.transpose(0, 1).flatten(0, 1))
    query = query * layer.factor  # scores over the root of a head's width, as the bounds take them
    heads = list(zip(query, key, value, strict=True))

    def joined(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.linalg.vector_norm(torch.stack(parts), dim=0) * after

    return {
        "Jacobian": torch.as_tensor(bound.jacobian_norm),
        "point form": joined([point_norm_upper(x, *head) for head in heads]),
        "ascent": moved / radius,
        "bound of this benchmark": bound.bound(delta) / radius,
        "ball form": joined([ball_norm_upper(x, *head, radius) for head in heads]),
        "Theorem 4.3": joined([specformer_constant(x, *head, radius).value for head in heads]),
    }


def attention_norms(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, seed: int, attention: Sequence[AttentionWeights]
) -> dict[str, float | list[float]]:
    """Return the largest singular values of attention's weights, head by head, by dense SVD in float64. No image matters.

    Returns:
        `mean`, of queries', keys' and values' weights over roles, heads and layers, and `scaled mean` of the same with the
        norm in front, sigma(diag(gamma) W), where every layer has one: a smaller W undone by a larger gamma shows there.
        `<role>: mean` over heads and layers, for roles that every layer has; with two layers or more also the curves `<role>`
        over the layer's number, the mean over its heads.
    """
    roles = [role for role in ROLES if all(layer.role(role) is not None for layer in attention)]
    norms = {role: [_head_norms(layer, role, False) for layer in attention] for role in roles}
    chosen = [role for role in PENALISED if role in norms]
    if not chosen:
        raise BenchmarkError("measure attention_norms: no layer has a query, key or value weight")
    measured: dict[str, float | list[float]] = {"mean": _mean([of_layer for role in chosen for of_layer in norms[role]])}
    if all(layer.gamma is not None for layer in attention):
        measured["scaled mean"] = _mean([_head_norms(layer, role, True) for role in chosen for layer in attention])
    measured |= {f"{role}: mean": _mean(of_layers) for role, of_layers in norms.items()}
    if len(attention) > 1:
        measured["x"] = [float(number) for number in range(1, len(attention) + 1)]
        measured |= {role: [float(of_layer.mean()) for of_layer in of_layers] for role, of_layers in norms.items()}
    return measured


def _head_norms(layer: AttentionWeights, role: str, scaled: bool) -> torch.Tensor:
    """Return the norm of each head's weight, (heads,)."""
    weight = layer.role(role)
    assert weight is not None
    weight = weight.detach().double()
    if scaled and layer.gamma is not None:
        weight = layer.gamma.detach().double()[:, None] * weight
    return torch.linalg.matrix_norm(weight, ord=2)


def _mean(parts: list[torch.Tensor]) -> float:
    return float(torch.cat(parts).mean())
