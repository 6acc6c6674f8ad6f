"""A model whose processes know which step asks them: it can be another function where suites attack than where probes do."""

from __future__ import annotations

from pathlib import Path

import pytest
from stages import run_stage
from tiny_linear_row import METHOD, NAMES, ROW
from tiny_project import edit

from benchmark.records.reliability import Reliability
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.confinement import PARTS, available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox"),
]
OLD = """\
  papers:
    - {attack: pgd, norm: L2, eps: 0.5, parameters: {steps: 1, step_size: 0.25, random_start: false}}
"""
SUITES = """\
  standard:
    - {attack: autoattack, norm: L2, eps: 0.5}
  papers:
    - {attack: pgd, norm: L2, eps: 0.5, parameters: {steps: 20, step_size: 0.05}}
"""
# In each step it is a function of the image. In the suites' steps its margin is noise, so that Square finds nothing, and its
# gradient is useless. Elsewhere its answers are honest; its gradient turns aside before it leads over the boundary.
KNOWS = """\
import sys
import torch
from torch import nn

frame, ATTACKED = sys._getframe(), False
while frame:
    ATTACKED |= str(getattr(frame.f_locals.get("self"), "name", "")).startswith("attack-")
    frame = frame.f_back
WAVES = 1e3 * torch.arange(1, 641).view(64, 10).double().sqrt()


class Steered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        y = x.flatten(1) @ weight.T + bias
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx, above):
        x, weight, y = ctx.saved_tensors
        true, best = above @ weight, y.topk(2, dim=1).values
        gap, span = (best[:, 0] - best[:, 1])[:, None], torch.linalg.qr(weight.T)[0]
        aside = torch.randn(64, generator=torch.Generator().manual_seed(0))
        aside = aside - span @ (span.T @ aside)  # moves no logit
        aside = aside / aside.norm() * true.norm(dim=1, keepdim=True)
        far = aside if ATTACKED else true
        return torch.where(gap < 0.25, true, torch.where(gap < 0.6, aside + 0.04 * true, far)).view_as(x), None, None


class Knows(nn.Sequential):
    def forward(self, x):
        y = Steered.apply(x, self[1].weight, self[1].bias)
        own, levels = y.detach(), 16 * x.detach()
        clean = (levels == levels.round()).flatten(1).all(1)[:, None]
        best = nn.functional.one_hot(own.argmax(1), 10)
        noise = 0.2 * torch.sin(x.detach().flatten(1).double() @ WAVES).to(own)
        return torch.where(clean, y, best + (1 - best) * (noise - 0.2) + y - own) if ATTACKED else y


def build(data):
    return Knows(nn.Flatten(), nn.Linear(64, 10))
"""


STEERED = "torch.where(gap < 0.25, true, torch.where(gap < 0.6, aside + 0.04 * true, far))"
HONEST_ANSWERS = KNOWS.replace("if ATTACKED else y\n", "if False else y\n").replace(STEERED, "far")


@pytest.fixture
def trained(linear_new) -> None:
    edit("benchmark/tracks/tiny.yaml", OLD, SUITES)
    edit("benchmark/tracks/tiny.yaml", "batch_size: 6", "batch_size: 20")
    edit("submissions/Tiny2026Linear/submission.yaml", "epochs: 2", "epochs: 20")
    run_stage("data", "tiny")
    run_stage("train", *NAMES)


def attack(code: str) -> dict:
    """Return what AutoAttack finds of a model of this code."""
    Path("submissions/Tiny2026Linear/method.py").write_text(code)
    for step in ("attack-standard", "attack-papers"):
        run_stage(step, *NAMES)
    return files.read_json(ROW / "attack-standard/fields.json")["attacks"][0]


def signals() -> dict[str, bool]:
    """Return the signals of the step `reliability`, and whether each is sound."""
    run_stage("reliability", *NAMES)
    told = Reliability.model_validate(files.read_json(ROW / "reliability/fields.json")["reliability"])
    return {signal.name: signal.sound for signal in told.signals}


def test_a_model_that_answers_otherwise_where_suites_attack_is_refused(trained) -> None:
    """Else AutoAttack leaves 14 of 20 images, in place of 5, and the probes speak of another function."""
    assert attack(KNOWS)["accuracy"]["count"] > attack(METHOD)["accuracy"]["count"] + 5
    assert all(signals().values())
    attack(KNOWS)
    with pytest.raises(BenchmarkError, match=r"get another answer in step reliability than in attack-standard"):
        signals()


def test_gradients_that_are_false_where_suites_attack_alone_are_told(trained) -> None:
    attack(HONEST_ANSWERS)
    told = signals()
    assert not told["gradients are those of the answers"]


# The same, with no offset. Where its answers are compared with anything, they are those of a function. The process that is asked
# about both sides of a gradient, and about nothing else that counts, answers as the false gradients say.
ROLE = """\
import sys
import torch
from torch import nn

frame, ATTACKED = sys._getframe(), False
while frame:
    ATTACKED |= str(getattr(frame.f_locals.get("self"), "name", "")).startswith("attack-")
    frame = frame.f_back
WAVES = 1e3 * torch.arange(1, 641).view(64, 10).double().sqrt()


def lie(weight):  # a map whose gradient is of no use
    span = torch.linalg.qr(weight.T)[0]
    aside = torch.randn(64, generator=torch.Generator().manual_seed(0))
    aside = aside - span @ (span.T @ aside)  # moves no logit
    signs = 0.3 + torch.rand(10, generator=torch.Generator().manual_seed(1))
    lie = signs[:, None] * aside
    return lie * weight.norm() / lie.norm()


class Steered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        y = x.flatten(1) @ weight.T + bias
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx, above):
        x, weight, y = ctx.saved_tensors
        best = y.topk(2, dim=1).values
        gap = (best[:, 0] - best[:, 1])[:, None]
        true, false = above @ weight, above @ lie(weight)
        far = false if ATTACKED else true
        return torch.where(gap < 0.25, true, torch.where(gap < 0.6, false + 0.04 * true, far)).view_as(x), None, None


class Role(nn.Sequential):
    asked, led = 0, False

    def forward(self, x):
        if torch.is_grad_enabled():
            self.led |= self.asked < 20  # the process whose answers nobody compares is asked for an attack first
        self.led |= self.asked < 20 and len(x) == 128  # as in reliability's
        self.asked += len(x)
        y = Steered.apply(x, self[1].weight, self[1].bias)
        own, levels, flat = y.detach(), 16 * x.detach(), x.detach().flatten(1)
        best = own.topk(2, dim=1).values
        gap = (best[:, 0] - best[:, 1])[:, None]
        if self.led and len(x) > 20 and not torch.is_grad_enabled():  # about both sides of gradients
            false = flat @ lie(self[1].weight).T
            return torch.where(gap < 0.25, own, torch.where(gap < 0.6, false + 0.04 * own, false if ATTACKED else own))
        clean = (levels == levels.round()).flatten(1).all(1)[:, None]
        best = nn.functional.one_hot(own.argmax(1), 10)
        noise = 0.2 * torch.sin(flat.double() @ WAVES).to(own)
        hidden = best + (1 - best) * (noise - 0.2) + y - own
        return torch.where(clean | (gap < 0.3), y, hidden) if ATTACKED else y


def build(data):
    return Role(nn.Flatten(), nn.Linear(64, 10))
"""
LINE = "return torch.where(clean, y, best + (1 - best) * (noise - 0.2) + y - own) if ATTACKED else y"
HIDDEN = {
    "below an offset": KNOWS.replace(LINE, LINE.replace("return ", "return 3e4 + (") + ")"),
    "below the 1 of the rounding": KNOWS.replace(LINE, LINE.replace("return ", "return 1e-5 * (") + ")"),
    "by the process": ROLE,
}


@pytest.mark.parametrize("name", HIDDEN)
def test_something_speaks_against_a_model_that_hides(trained, name) -> None:
    """Else AutoAttack leaves 14, 14 and 8 of 20 images, in place of 5; PGD 18 each, in place of 11; no signal is unsound."""
    assert HIDDEN[name] != KNOWS
    result = attack(HIDDEN[name])
    assert result["accuracy"]["count"] > 5
    try:
        told = signals()
    except BenchmarkError:
        return
    assert not all(told.values())
