"""APGD of the fast engine: the authors' points, the published schedule, and which runs start again."""

from __future__ import annotations

import pytest
import torch
from tiny_attacked import RADII, Watched, authors, labelled, search_of

from benchmark.attacks.engine import apgd
from benchmark.attacks.prediction import MIN_ROWS

NORMS = pytest.mark.parametrize("norm", ["Linf", "L2"])


@pytest.mark.sweep
@NORMS
@pytest.mark.parametrize("loss", ["ce", "dlr-targeted"])
def test_apgd_visits_the_points_that_the_authors_file_visits(norm, loss, monkeypatch) -> None:
    """From the same random start, bit for bit, until the image is broken or the authors' run stands still to its end."""
    model, eps = Watched(), RADII[norm]
    images, labels = labelled(model, n=MIN_ROWS)  # of one batch with the engine's, which rounds by its size
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(5)) - 0.5
    noise = apgd.normalise(noise, norm)
    draw = apgd._noise

    def given(search, shape, image, target, starts, purpose):
        return draw(search, shape, image, target, starts, purpose) if starts else noise[search.indices[image]]

    monkeypatch.setattr(apgd, "_noise", given)
    rivals = ((labels + 1) % 6)[:, None]
    attacker = authors(model, norm, eps)
    chosen = attacker.apgd if loss == "ce" else attacker.apgd_targeted
    chosen.loss, chosen.y_target = loss, rivals[:, 0]
    chosen.init_hyperparam(images)
    _, standing, _, _ = chosen.attack_single_run(images, labels, x_init=images + eps * noise)
    theirs = [model.points(place, gradient=True) for place in range(len(images))]
    assert 0 < int(standing.sum()) < len(images)
    stood_still = []
    for place in range(len(images)):
        model.asked.clear()
        search = search_of(model, images[place : place + 1], labels[place : place + 1], norm, eps, 1, [place])
        if loss == "ce":
            apgd.untargeted(search)
        else:
            apgd.targeted(search, rivals[place : place + 1])
        ours = model.points(0, gradient=True)
        assert len(ours) <= len(theirs[place]) == 101
        same = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs[place], strict=False)) if not torch.equal(a, b)), len(ours)
        )
        if same < len(ours):  # another start: the authors' run never moved again
            assert norm == "Linf"
            assert all(torch.equal(point, theirs[place][same - 1]) for point in theirs[place][same:])
            stood_still.append(place)
        else:
            assert bool(search.broken[0]) is not bool(standing[place])
        if search.broken[0]:
            assert not standing[place] or place in stood_still
        else:
            assert len(ours) == 101
            assert standing[place]
    assert bool(stood_still) is (norm == "Linf")


@pytest.mark.slow
def test_only_runs_that_nearly_broke_an_image_start_again(monkeypatch) -> None:
    """Nearness counted anew from the points that the model was asked about; starts are drawn from streams of their own."""
    model, eps, begun = Watched(), RADII["Linf"], []
    images, labels = labelled(model, n=5)
    rivals = (labels[:, None] + torch.arange(1, 4)) % 6
    draw = apgd._noise

    def noted(search, shape, image, target, starts, purpose):
        noise = draw(search, shape, image, target, starts, purpose)
        if starts == 0:  # else a run that stood still
            begun.append((target, noise))
        return noise

    monkeypatch.setattr(apgd, "_noise", noted)
    again = 0
    for place in range(len(images)):
        image, label, rival = images[place : place + 1], labels[place : place + 1], rivals[place : place + 1]
        model.asked.clear()
        search = search_of(model, image, label, "Linf", eps, indices=[place])
        apgd.targeted(search, rival)
        if search.broken[0]:
            continue
        with torch.no_grad():
            logits = [4 * model.net(torch.stack(model.points(r, gradient=True))) for r in range(3)]
        closest = torch.stack([apgd.targeted_dlr(z, label, rival[:, r]).max() for r, z in enumerate(logits)])
        near = -float(closest.sort().values[1]) + 1e-4  # two of the three are nearer
        begun.clear()
        search = search_of(model, image, label, "Linf", eps, indices=[place])
        apgd.targeted(search, rival, restarts=2, near=near)
        missed = (closest > -near).nonzero()[:, 0].tolist()
        assert len(missed) == 2
        assert [target for target, _ in begun] == [0, 1, 2, *(r + 3 for r in missed), *(r + 6 for r in missed)]
        assert len({noise.numpy().tobytes() for _, noise in begun}) == 7
        again += 1
    assert again


@pytest.mark.parametrize(
    ("halved", "checked", "best", "rises", "halves"),
    [
        (False, 1.0, 2.0, 20, False),  # rising, and better than at the last checkpoint
        (False, 1.0, 2.0, 16, True),  # 16 rises of 22 steps: at most three quarters
        (False, 2.0, 2.0, 20, True),  # rising, but no better: the second rule
        (True, 2.0, 2.0, 20, False),  # not twice in a row
    ],
)
def test_a_checkpoint_halves_the_step_by_either_published_rule(halved, checked, best, rises, halves) -> None:
    """Ibid., section 3.2, conditions 1 and 2, at the first checkpoint (step 22)."""
    point, at_best = torch.full((1, 1, 2, 2), 0.3), torch.full((1, 1, 2, 2), 0.7)
    numbers = {"best_loss": best, "loss": 0.5, "checked_loss": checked, "rises": float(rises), "step": 0.2}
    numbers |= {"done": 22, "halved": halved}
    state = {"point": point, "best": at_best, "slope": point, "best_slope": at_best}
    state |= {name: torch.tensor([value]) for name, value in numbers.items()}
    apgd._update(state, torch.tensor([0.4]), point, apgd.checkpoints(100))
    assert float(state["step"]) == pytest.approx(0.1 if halves else 0.2)
    assert torch.equal(state["point"], at_best if halves else point)
    assert torch.equal(state["slope"], at_best if halves else point)
    assert bool(state["halved"]) is halves
    assert float(state["checked_loss"]) == best
    assert float(state["rises"]) == 0


def test_the_schedule_is_the_published_one() -> None:
    marks = apgd.checkpoints(100)
    # p_1 = 0.22, then 0.03 less, at least 0.06
    assert marks.nonzero()[:, 0].tolist() == [22, 41, 57, 70, 80, 87, 93, 99]
    assert marks[marks > 0].tolist() == [22, 19, 16, 13, 10, 7, 6, 6]
