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

pytestmark = [pytest.mark.slow, pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox")]
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
COMMON = """\
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
        best = y.topk(2, dim=1).values
        gap, true = (best[:, 0] - best[:, 1])[:, None], above @ weight
        return guided(gap, true, above, weight).view_as(x), None, None


def aside(weight):  # a direction that moves no logit
    span, random = torch.linalg.qr(weight.T)[0], torch.randn(64, generator=torch.Generator().manual_seed(0))
    return random - span @ (span.T @ random)


"""
# In each step it is a function of the image. In the suites' steps its margin is noise, so that Square finds nothing, and its
# gradient is useless. Elsewhere its answers are honest; its gradient turns aside before it leads over the boundary.
STEERED = "torch.where(gap < 0.25, true, torch.where(gap < 0.6, false + 0.04 * true, far))"
KNOWS = f"""{COMMON}
def guided(gap, true, above, weight):
    false = aside(weight) / aside(weight).norm() * true.norm(dim=1, keepdim=True)
    far = false if ATTACKED else true
    return {STEERED}


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
    honest = attack(METHOD)["accuracy"]["count"]
    assert all(signals().values())
    assert attack(KNOWS)["accuracy"]["count"] > honest + 5
    with pytest.raises(BenchmarkError, match="get another answer in step reliability than in attack-standard"):
        signals()


def test_gradients_that_are_false_where_suites_attack_alone_are_told(trained) -> None:
    attack(HONEST_ANSWERS)
    assert not signals()["gradients are those of the answers"]


# The same, but its answers are honest near its boundaries, and its false gradients are those of another map. A process that is
# attacked before it was asked about 20 images, as the second attack's, answers as that map does.
ROLE = f"""{COMMON}
def lie(weight):  # a map whose gradient is of no use
    signs = 0.3 + torch.rand(10, generator=torch.Generator().manual_seed(1))
    other = signs[:, None] * aside(weight)
    return other * weight.norm() / other.norm()


def guided(gap, true, above, weight):
    false = above @ lie(weight)
    far = false if ATTACKED else true
    return {STEERED}


class Role(nn.Sequential):
    asked, led = 0, False

    def forward(self, x):
        if torch.is_grad_enabled():
            self.led |= self.asked < 20
        self.asked += len(x)
        y = Steered.apply(x, self[1].weight, self[1].bias)
        own, levels, flat = y.detach(), 16 * x.detach(), x.detach().flatten(1)
        best = own.topk(2, dim=1).values
        gap = (best[:, 0] - best[:, 1])[:, None]
        if self.led and len(x) > 20 and not torch.is_grad_enabled():
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
def test_a_model_that_hides_is_refused_or_told(trained, name) -> None:
    """Else AutoAttack leaves 14, 14 and 8 of 20 images, in place of 5, PGD leaves 18, in place of 11, and nothing warns."""
    assert HIDDEN[name] != KNOWS
    refusal, told = "", {}
    try:  # below the offset, one rounding of a batch of other size may already be told in the attack step
        assert attack(HIDDEN[name])["accuracy"]["count"] > 5
        told = signals()
    except BenchmarkError as error:
        refusal = str(error)
    step = "" if name == "below an offset" else "step reliability"
    assert f"get another answer in {step}" in refusal or not told["gradients are those of the answers"]


def test_one_that_ends_its_process_after_false_gradients_keeps_nothing(trained) -> None:
    """Else the next run would take up what the attack found, and would not know the gradients."""
    crash = "    def forward(self, x):\n        import os\n        self.calls = getattr(self, 'calls', 0) + 1\n"
    code = HONEST_ANSWERS.replace("    def forward(self, x):\n", crash + "        self.calls < 300 or os._exit(0)\n")
    with pytest.raises(BenchmarkError, match="the process that runs its code failed"):
        attack(code)
    assert not [*Path("work/scratch").rglob("attack-standard/*/blocks/*")]
