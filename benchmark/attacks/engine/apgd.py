"""Auto-PGD (Croce and Hein 2020, algorithm 1) on many images at once, each with its own progress and random stream.

Steps, momentum, checkpoints and losses repeat the authors' file operation by operation: from the same start a run visits
the same points (a test compares the two). A run ends once its image is broken; the verdict is the same.

In the Linf ball a run often stops moving, at its best point, in a corner that no step leaves. The authors' code then
repeats one gradient until the budget is spent. Here the rest of the budget goes to another random start.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from benchmark.attacks.engine.slots import Search, State, column, generator, sizes
from benchmark.attacks.prediction import margins

Objective = Callable[[torch.Tensor, State], torch.Tensor]  # logits (m, classes) and states to losses (m,)
STEPS, RHO, MOMENTUM = 100, 0.75, 0.75
CE, TARGETED = 0, 1  # purposes of random streams


def untargeted(search: Search, restarts: int = 1) -> None:
    """Run APGD-CE: maximise the cross-entropy from `restarts` random points an image, first starts of all images first."""
    # runs have no target here; the number, from -1 on, tells restarts apart
    runs = [(image, restart) for restart in range(-1, restarts - 1) for image in range(len(search.images))]
    _run(search, runs, lambda z, state: cross_entropy(z, state["label"], reduction="none"), CE)


def targeted(search: Search, rivals: torch.Tensor, restarts: int = 0, near: float = 0.0) -> None:
    """Run APGD-T: maximise the targeted difference-of-logits ratio, one run for each of an image's rivals (n, targets).

    The first rivals of all images come first. At loss 0 the rival overtakes the label. A run whose loss comes within
    `near` of 0 starts `restarts` times more, from other random points.
    """
    targets = rivals.shape[1]
    closest = torch.full(rivals.shape, -torch.inf, device=rivals.device)  # best loss of each run

    def objective(logits: torch.Tensor, state: State) -> torch.Tensor:
        image, rank = state["image"], state["target"] % targets
        loss = targeted_dlr(logits, state["label"], rivals[image, rank])
        closest[image, rank] = torch.maximum(closest[image, rank], loss.detach())
        return loss

    _run(search, [(image, rank) for rank in range(targets) for image in range(len(search.images))], objective, TARGETED)
    missed = (closest > -near).nonzero().tolist()
    again = [(image, rank + targets * turn) for turn in range(1, restarts + 1) for image, rank in missed]
    _run(search, again, objective, TARGETED)


def targeted_dlr(logits: torch.Tensor, label: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return -(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2), z_(i) the i-th largest of logits (m, classes): (m,). Eq. (7)."""
    ordered, row = logits.sort(dim=1).values, torch.arange(len(logits), device=logits.device)
    spread = ordered[:, -1] - 0.5 * (ordered[:, -3] + ordered[:, -4]) + 1e-12
    return -(logits[row, label] - logits[row, target]) / spread


def _run(search: Search, runs: list[tuple[int, int]], objective: Objective, purpose: int) -> None:
    windows = checkpoints(STEPS)

    def start(image: torch.Tensor, target: torch.Tensor) -> State:
        begun = _start(search, image, target, torch.zeros_like(image), purpose)
        return begun | {"starts": torch.zeros_like(image), "asked": torch.zeros_like(image)}

    def advance(state: State) -> torch.Tensor:
        logits, loss, slope = search.gradient(state["point"], lambda z: objective(z, state))
        search.flat += int(((state["done"] == 0) & (slope.flatten(1) == 0).all(1)).sum())
        wrong = search.record(state, margins(logits, state["label"]) <= 0)
        _update(state, loss, slope, windows.to(loss.device))
        before, point = state["before"], state["point"]
        _step(state, search.norm, search.eps)
        state["done"] += 1
        state["asked"] += 1
        ended = wrong | (state["asked"] > STEPS)
        stuck = _alike(state["point"], point) & _alike(before, point) & _alike(state["best"], point) & ~ended
        if stuck.any():
            state["starts"] += stuck
            image, target, starts = (state[name][stuck] for name in ("image", "target", "starts"))
            for name, values in _start(search, image, target, starts, purpose).items():
                state[name][stuck] = values
        return ended

    search.run(runs, start, advance)


def _alike(points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return (points == others).flatten(1).all(1)


def _start(search: Search, image: torch.Tensor, target: torch.Tensor, starts: torch.Tensor, purpose: int) -> State:
    """Return the states of runs (m,) at their `starts`-th random points, counted from 0."""
    clean = search.images[image]
    numbers = zip(image.tolist(), target.tolist(), starts.tolist(), strict=True)
    noise = torch.stack([_noise(search, clean.shape[1:], i, t, s, purpose) for i, t, s in numbers]).to(clean)
    point = (clean + search.eps * noise).clamp(0, 1)
    zero = torch.zeros(len(image), device=clean.device)
    return {
        "label": search.labels[image],
        "clean": clean,
        "point": point,
        "before": point.clone(),  # the point before the last step
        "best": point.clone(),
        "slope": torch.zeros_like(point),
        "best_slope": torch.zeros_like(point),
        "best_loss": zero.clone(),
        "loss": zero.clone(),  # the authors compare the first step's loss with 0
        "checked_loss": zero.clone(),  # best loss at the last checkpoint
        "halved": torch.ones_like(image, dtype=torch.bool),  # whether the last checkpoint halved the step
        "rises": zero.clone(),  # since the last checkpoint
        "step": torch.full_like(zero, 2 * search.eps),
        "done": torch.zeros_like(image),  # steps since this start
    }


def _noise(search: Search, shape: torch.Size, image: int, target: int, starts: int, purpose: int) -> torch.Tensor:
    stream = generator(search.seed, search.indices[image], purpose, target + 1, starts)
    if search.norm == "Linf":
        return normalise(2 * torch.rand(1, *shape, generator=stream) - 1, "Linf")[0]
    return normalise(torch.randn(1, *shape, generator=stream), "L2")[0]


def checkpoints(steps: int) -> torch.Tensor:
    """Return (steps + 1,): at a checkpoint the number of steps since the one before, else 0. Section 3.2."""
    window, shrink, least = max(int(0.22 * steps), 1), max(int(0.03 * steps), 1), max(int(0.06 * steps), 1)
    marks, since = torch.zeros(steps + 1), 0
    for step in range(1, steps + 1):
        since += 1
        if since == window:
            marks[step], since, window = window, 0, max(window - shrink, least)
    return marks


def _update(state: State, loss: torch.Tensor, slope: torch.Tensor, windows: torch.Tensor) -> None:
    """Update the states by loss and gradient at the current points.

    At a checkpoint with too little progress halve the step and return to the best point.
    """
    first = state["done"] == 0
    better = first | (loss > state["best_loss"])
    state["best"] = torch.where(column(better), state["point"], state["best"])
    state["best_slope"] = torch.where(column(better), slope, state["best_slope"])
    state["best_loss"] = torch.where(better, loss, state["best_loss"])
    state["checked_loss"] = torch.where(first, loss, state["checked_loss"])
    state["rises"] += ~first & (loss > state["loss"])
    state["loss"] = torch.where(first, state["loss"], loss)
    state["slope"] = slope
    window = windows[state["done"]]
    check = window > 0
    stuck = ~state["halved"] & (state["checked_loss"] >= state["best_loss"])
    halve = check & ((state["rises"] <= RHO * window) | stuck)
    state["halved"] = torch.where(check, halve, state["halved"])
    state["checked_loss"] = torch.where(check, state["best_loss"], state["checked_loss"])
    state["rises"] = torch.where(check, 0.0, state["rises"])
    state["step"] = torch.where(halve, state["step"] / 2, state["step"])
    state["point"] = torch.where(column(halve), state["best"], state["point"])
    state["slope"] = torch.where(column(halve), state["best_slope"], state["slope"])


def _step(state: State, norm: str, eps: float) -> None:
    point, clean = state["point"], state["clean"]
    drift, step = point - state["before"], column(state["step"])
    momentum = column(torch.where(state["done"] > 0, MOMENTUM, 1.0))
    into = into_box if norm == "Linf" else into_l2
    direction = torch.sign(state["slope"]) if norm == "Linf" else normalise(state["slope"], "L2")
    moved = into(point + step * direction, clean, eps)
    moved = into(point + (moved - point) * momentum + drift * (1 - momentum), clean, eps)
    state["before"], state["point"] = point, moved


def normalise(points: torch.Tensor, norm: str) -> torch.Tensor:
    """Divide each of (m, c, h, w) by its norm."""
    return points / (column(sizes(points, norm)) + 1e-12)


def into_box(points: torch.Tensor, clean: torch.Tensor, eps: float) -> torch.Tensor:
    """Project onto the Linf ball and [0, 1]."""
    return torch.clamp(torch.min(torch.max(points, clean - eps), clean + eps), 0.0, 1.0)


def into_l2(points: torch.Tensor, clean: torch.Tensor, eps: float) -> torch.Tensor:
    """Project onto the l2 ball, then onto [0, 1]."""
    moved = points - clean
    size = column(sizes(moved, "L2"))
    return torch.clamp(clean + moved / (size + 1e-12) * torch.clamp(size, max=eps), 0.0, 1.0)
