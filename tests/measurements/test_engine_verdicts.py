"""What measurements/engine_verdicts.py concludes from verdicts, when it computes anew, and the models it runs on."""

from __future__ import annotations

import pytest
import torch

from benchmark.layers.vit import vision_transformer
from benchmark.loading import tracks
from benchmark.runtime import files
from benchmark.specs.data import DataSpec
from measurements import engine_models, engine_verdicts
from measurements.engine_verdicts import THREATS, Compared, Run, criteria


def verdict(*broken: int) -> list[int]:
    return [int(image not in broken) for image in range(100)]


def alike(models: int = 8) -> list[Compared]:
    """Every engine and seed breaks image 0 alone."""
    verdicts = {engine: [verdict(0)] * 3 for engine in engine_verdicts.ENGINES}
    return [Compared(f"model{m}", threat, 100, dict(verdicts)) for m in range(models) for threat in THREATS]


def met(compared: list[Compared]) -> list[bool]:
    return [ok for ok, _ in criteria(compared, 3, 100)]


def test_equal_verdicts_meet_every_criterion() -> None:
    assert met(alike()) == [True] * 5
    assert met(alike(7)) == [True, True, True, True, False], "too few models"


def test_one_image_more_robust_on_average_is_too_many() -> None:
    compared = alike()
    compared[3].verdicts["fast"] = [verdict(0), verdict(), verdict(0)]
    assert met(compared) == [False, True, True, True, True]
    assert compared[3].differing() == [(1, 0, "fast")]
    compared[5].verdicts["fast"] = [verdict(0, 7), verdict(0), verdict(0)]
    assert met(compared) == [True] * 5
    assert compared[5].differing() == [(0, 7, "reference")]


def test_the_most_robust_seeds_may_differ_by_one_image() -> None:
    compared = alike()
    compared[2].verdicts["reference"] = [verdict(0, 1), verdict(0, 1), verdict(0, 1)]
    assert met(compared)[1]
    compared[2].verdicts["reference"] = [verdict(0, 1, 2), verdict(0, 1, 2), verdict(0, 1, 2)]
    assert not met(compared)[1]
    compared[2].verdicts["reference"] = [verdict(0, 1, 2), verdict(0), verdict(0, 1, 2)]  # its worst seed counts
    assert met(compared)[1]
    assert compared[2].itself() == [2, 0, 2]


def test_agreement_below_99_in_100_is_not_met() -> None:
    compared = alike()
    for c in compared:
        c.verdicts["fast"] = [verdict(0, 1)] * 3  # 99 of 100 exactly
    assert met(compared) == [True] * 5
    compared[0].verdicts["fast"] = [verdict(0, 1), verdict(0, 1), verdict(0, 1, 2)]
    assert met(compared) == [True, True, False, True, True]


def test_a_run_is_kept_until_what_it_depends_on_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engine_verdicts, "KEPT", tmp_path)
    (tmp_path / "cnn-robust.safetensors").write_bytes(b"weights")
    run = Run("cnn-robust", "L2", 0.5, "fast", 1, 100)
    assert run.kept() is None
    files.write_json(run.path, {"inputs": run.inputs(), "robust": [1]})
    assert run.kept() == {"inputs": run.inputs(), "robust": [1]}
    (tmp_path / "cnn-robust.safetensors").write_bytes(b"others")
    assert run.kept() is None
    (tmp_path / "cnn-robust.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(engine_verdicts, "engine_digest", lambda engine: f"changed {engine}")
    assert run.kept() is None


@pytest.mark.parametrize("architecture", engine_models.ARCHITECTURES)
def test_each_model_makes_logits_whose_gradients_reach_all_parameters(architecture) -> None:
    torch.manual_seed(0)
    data = tracks.load("digits").data
    model = engine_models.build(architecture, data).train()
    logits = model(torch.rand(6, *data.shape))
    assert logits.shape == (6, data.classes)
    logits.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_covit_has_the_parameters_that_the_paper_counts() -> None:
    """Depth 4, width 128, patch 32 at 224x224: 918,410 for the ViT; one convolution or four in place of attention."""
    data = DataSpec(source="digits", validation=1, shape=(3, 224, 224), classes=10)

    def parameters(heads: int | None) -> int:
        model = vision_transformer(data, patch_size=32, width=128, depth=4, heads=4)
        for block in model[1].blocks:
            if heads:
                block.attn = engine_models.ConvolvedTokens(128, heads)
        return sum(p.numel() for p in model.parameters())

    assert parameters(None) - parameters(1) == 918_410 - 917_386
    assert parameters(None) - parameters(4) == 918_410 - 769_930


def test_convolved_tokens_are_one_convolution_a_head_over_the_tokens() -> None:
    torch.manual_seed(0)
    layer, x = engine_models.ConvolvedTokens(6, 2), torch.randn(1, 5, 6)
    weight, bias = layer.heads.weight, layer.heads.bias
    padded = torch.cat([torch.zeros(1, 6), x[0], torch.zeros(1, 6)])
    mixed = torch.empty(5, 6)
    for token in range(5):
        for channel in range(6):
            head = slice(0, 3) if channel < 3 else slice(3, 6)
            mixed[token, channel] = bias[channel] + (weight[channel] * padded[token : token + 3, head].T).sum()
    assert torch.allclose(layer(x)[0], mixed @ layer.output.weight.T + layer.output.bias, atol=1e-5)  # rounding
