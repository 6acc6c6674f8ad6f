"""The same network as the undefended baseline, trained otherwise."""

from __future__ import annotations

import torch

from benchmark.specs import methods, submissions, tracks


def test_the_network_is_the_baselines() -> None:
    track, models = tracks.load("digits"), []
    for name, variant in (("Dosovitskiy2021ViT", "standard"), ("Wong2020Fast", "linf")):
        torch.manual_seed(0)
        models.append(methods.build(submissions.load(name), variant, track).state_dict())
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
