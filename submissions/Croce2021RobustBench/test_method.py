"""Zoo models from files: the checkpoint inside the pyautoattack wheel, and files that the tests write. No network."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path

import pytest
import torch

from benchmark.specs import methods
from benchmark.specs.data import DataSpec

pytestmark = pytest.mark.slow  # robustbench takes seconds to import
CIFAR = DataSpec(source="parquet", validation=1, shape=(3, 32, 32), classes=10)
RESNET = {"name": "Addepalli2022Efficient_RN18", "dataset": "cifar10", "threat_model": "Linf"}  # a plain ResNet-18
XCIT = {"name": "Debenedetti2022Light_XCiT-S12", "dataset": "cifar10", "threat_model": "Linf"}


@pytest.fixture(scope="module")
def method():
    return methods.method("Croce2021RobustBench")


@pytest.fixture(scope="module")
def shipped() -> Path:
    """A ResNet-18 for CIFAR-10, beside the authors' examples."""
    import pyautoattack

    return Path(pyautoattack.__file__).parent / "examples" / "model_test.pt"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch) -> None:
    def refuse(*_, **__):
        raise AssertionError("a test must not download")

    monkeypatch.setattr("robustbench.utils.download_gdrive_new", refuse)
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)


def test_the_shipped_checkpoint_computes_what_its_authors_network_computes(method, shipped) -> None:
    from pyautoattack.examples.resnet import ResNet18

    theirs = ResNet18().eval()
    theirs.load_state_dict(torch.load(shipped, map_location="cpu", weights_only=True))
    ours = method.pretrained(CIFAR, shipped, **RESNET).eval()
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))
    empty = method.build(CIFAR, **RESNET)
    assert empty.state_dict().keys() == ours.state_dict().keys()


def test_prefixes_and_wrappers_of_checkpoints_are_robustbenchs(method, shipped, tmp_path) -> None:
    state = torch.load(shipped, map_location="cpu", weights_only=True)
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "wrapped.pt")
    loaded = method.pretrained(CIFAR, tmp_path / "wrapped.pt", **RESNET).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_xcit_loads_inside_its_normalisation(method, tmp_path) -> None:
    made = method.build(CIFAR, **XCIT)
    torch.save({"model": made.model.state_dict(), "args": argparse.Namespace(epochs=1)}, tmp_path / "xcit.pth")
    loaded = method.pretrained(CIFAR, tmp_path / "xcit.pth", **XCIT)
    assert all(torch.equal(a, b) for a, b in zip(made.state_dict().values(), loaded.state_dict().values(), strict=True))
    assert float(loaded.normalize.mean[0, 0, 0, 0]) == pytest.approx(0.4914)


def test_another_models_file_is_refused(method, shipped, tmp_path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="does not fit Wong2020Fast: "):
        method.pretrained(CIFAR, shipped, **{**RESNET, "name": "Wong2020Fast"})
    state = torch.load(shipped, map_location="cpu", weights_only=True)
    kept = state.pop("linear.bias")
    torch.save(state, tmp_path / "cut.pt")
    with pytest.raises(ValueError, match=r"Missing key\(s\) in state_dict: \"linear.bias\""):
        method.pretrained(CIFAR, tmp_path / "cut.pt", **RESNET)
    # even where the loader lets keys miss, as it does for some models
    monkeypatch.setattr(
        "robustbench.utils._safe_load_state_dict", lambda net, _n, s, _d: (net.load_state_dict(s, strict=False), net)[1]
    )
    with pytest.raises(ValueError, match=r"does not hold the model's linear\.bias"):
        method.pretrained(CIFAR, tmp_path / "cut.pt", **RESNET)
    torch.save({**state, "linear.bias": kept}, tmp_path / "whole.pt")
    method.pretrained(CIFAR, tmp_path / "whole.pt", **RESNET)


def test_a_web_page_in_place_of_a_checkpoint_is_named(method, tmp_path) -> None:
    path = tmp_path / "Wong2020Fast.pt"
    path.write_text("<!DOCTYPE html><html>Not found</html>")
    with pytest.raises(ValueError, match="is a web page and no checkpoint"):
        method.pretrained(None, path, name="Wong2020Fast", dataset="cifar10", threat_model="Linf")


def test_a_pickle_that_would_run_code_is_refused(method, tmp_path) -> None:
    class Runs:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "bad.pt").write_bytes(pickle.dumps({"state_dict": Runs()}))
    for zoo in (RESNET, XCIT):
        with pytest.raises(ValueError, match="does not fit"):
            method.pretrained(CIFAR, tmp_path / "bad.pt", **zoo)
    assert not (tmp_path / "ran").exists()


def test_unknown_names_and_ensembles(method, shipped) -> None:
    with pytest.raises(ValueError, match="no model 'Wong2020Fst'; did you mean 'Wong2020Fast'"):
        method.build(CIFAR, **{**RESNET, "name": "Wong2020Fst"})
    with pytest.raises(ValueError, match="no data set 'cifar-10'; did you mean 'cifar10'"):
        method.build(CIFAR, **{**RESNET, "dataset": "cifar-10"})
    with pytest.raises(ValueError, match="ensemble of several files"):
        method.pretrained(CIFAR, shipped, **{**RESNET, "name": "Chen2020Adversarial"})
