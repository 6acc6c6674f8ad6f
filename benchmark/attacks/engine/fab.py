"""The targeted fast adaptive boundary attack (Croce and Hein 2020b) on many images at once, each with its own progress.

Steps repeat the authors' file; the projections are imported from it. FAB looks for the nearest adversarial image.
AutoAttack asks only whether one lies in the ball, so a run ends when it has one. Every point whose logits are computed
counts, even the point that FAB steps back to, which the authors' file ignores.
"""

from __future__ import annotations

import torch
from pyautoattack.fab_projections import projection_l2, projection_linf

from benchmark.attacks.engine.slots import Search, State, column, sizes
from benchmark.attacks.prediction import margins

STEPS, ALPHA, ETA, BETA = 100, 0.1, 1.05, 0.9


def targeted(search: Search, rivals: torch.Tensor) -> None:
    """Run FAB-T: one run from the clean image for each of its rivals (n, targets); nothing is random."""
    runs = [(image, rank) for rank in range(rivals.shape[1]) for image in range(len(search.images))]

    def start(image: torch.Tensor, target: torch.Tensor) -> State:
        clean = search.images[image]
        return {
            "label": search.labels[image],
            "rival": rivals[image, target],
            "clean": clean,
            "point": clean.clone(),
            "done": torch.zeros_like(image),
        }

    def advance(state: State) -> torch.Tensor:
        row = torch.arange(len(state["label"]), device=state["label"].device)

        def rival_margin(logits: torch.Tensor) -> torch.Tensor:
            return logits[row, state["rival"]] - logits[row, state["label"]]

        logits, difference, slope = search.gradient(state["point"], rival_margin)
        wrong = _record(search, state, logits)
        state["point"] = _step(state["point"], state["clean"], difference, slope, search.norm)
        logits = search.logits(state["point"])
        wrong |= _record(search, state, logits)
        misclassified = column(margins(logits, state["label"]) <= 0)
        back = state["clean"] + (state["point"] - state["clean"]) * BETA
        state["point"] = torch.where(misclassified, back, state["point"])
        state["done"] += 1
        return wrong | (state["done"] == STEPS)

    search.run(runs, start, advance)


def _record(search: Search, state: State, logits: torch.Tensor) -> torch.Tensor:
    """Record the points that are misclassified and in the ball; return which they are, (m,) bool."""
    near = sizes(state["point"] - state["clean"], search.norm) <= search.eps
    return search.record(state, (margins(logits, state["label"]) <= 0) & near)


def _step(point: torch.Tensor, clean: torch.Tensor, difference: torch.Tensor, slope: torch.Tensor, norm: str) -> torch.Tensor:
    """Return a point between the projections of point and clean image onto the linearised boundary, overshot by ETA."""
    rows, w = len(point), slope.flatten(1)
    offset = -difference + (w * point.flatten(1)).sum(1)
    project = projection_linf if norm == "Linf" else projection_l2
    both = torch.cat((point.flatten(1), clean.flatten(1)))
    moves = project(both, torch.cat((w, w)), torch.cat((offset, offset)))
    length = sizes(moves, norm).clamp(min=1e-8)
    alpha = column((length[:rows] / (length[:rows] + length[rows:])).clamp(0.0, ALPHA))
    to_point, to_clean = moves[:rows].view_as(point), moves[rows:].view_as(point)
    return ((point + ETA * to_point) * (1 - alpha) + (clean + to_clean * ETA) * alpha).clamp(0.0, 1.0)
