"""`rvb evaluate`: a model of one's own, from a file, outside of any checkout."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import command
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import benchmark
from benchmark.attacks.engine import square
from benchmark.evaluation import own_file
from benchmark.runtime import paths
from benchmark.runtime.errors import BenchmarkError

CODE = """\
from torch import nn
from beside import CLASSES


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))


def fails():
    raise KeyError("width")


def other():
    return 3
"""


@pytest.fixture
def model(tmp_path, monkeypatch) -> nn.Module:
    """In the working directory model.py, and in the result weights that classify digits at random."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(square, "QUERIES", 20)
    Path("model.py").write_text(CODE)
    Path("beside.py").write_text("CLASSES = 10\n")
    torch.manual_seed(0)
    yield nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for name in ("model", "beside"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_model_with_weights_is_evaluated_and_its_report_written(model) -> None:
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, "weights.pt")
    done = command.rvb(
        "evaluate", "model.py:build", "--weights", "weights.pt", "--count", "40", "--attack", "L2 0.1", "--attack", "Linf 2/255",
        "--certificate", "--save", "report.html", "--save", "report.json",
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    stored = json.loads(Path("report.json").read_text())
    assert "wrote report.html" in done.stdout
    assert {"clean", "AutoAttack L2 0.1", "AutoAttack Linf 0.00784314", "certified L2 0.1"} <= {*stored["numbers"]}
    images, labels = benchmark.load_images("digits", 40)
    assert stored["numbers"]["clean"]["count"] == int((model(images).argmax(1) == labels).sum())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.py"], "'model.py' names no function"),
        (["modle.py:build"], "there is no file modle.py"),
        (["model.py:biuld"], "model.py has no function 'biuld'; did you mean 'build'?"),
        (["model.py:fails"], "model.py:fails failed: KeyError: 'width'"),
        (["model.py:other"], "model.py:other returned int, not a torch.nn.Module"),
        (["no.such:build"], "no.such does not import: ModuleNotFoundError"),
        (["model.py:build", "--weights", "none.pt"], "there is no file none.pt"),
        (["model.py:build", "--attack", "Linf"], "'Linf' is no attack"),
        (["model.py:build", "--attack", "none", "--attack", "L2 1"], "--attack none stands beside other attacks"),
        (["model.py:build", "--device", "cuda:77"], "the model does not go to cuda:77: "),
        (["model.py:build", "--save", "report.pdf"], "a report is saved as .html"),
        (["model.py:fails", "--save", "model.py/x.html"], "cannot write into the folder model.py ("),
        (["model.py:fails", "--save", "/proc/x.html"], "cannot write into the folder /proc ("),
        (["model.py:fails", "--save", "."], ". is a folder: a report is saved as .html"),
    ],
)
def test_what_does_not_fit_is_one_line(model, arguments, words) -> None:
    assert words in command.error("evaluate", *arguments)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (b"<!DOCTYPE html><html>", "it is a web page"),
        (b"", "holds no weights that can be read without running its code"),
        ({"1.weight": torch.zeros(10, 64)}, "it lacks 1.bias"),
        ({"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10), "2.bias": torch.zeros(1)}, "has no 2.bias"),
        ({"1.weight": torch.zeros(10, 60), "1.bias": torch.zeros(10)}, "size mismatch for 1.weight"),
        ([1, 2], "holds a list, not tensors by name"),
    ],
)
def test_weights_that_do_not_fit_are_named(model, held, words) -> None:
    if isinstance(held, bytes):
        Path("weights.pt").write_bytes(held)
    else:
        torch.save(held, "weights.pt")
    with pytest.raises(BenchmarkError, match=re.escape(words)):
        own_file.load_weights(model, Path("weights.pt"))


def test_a_safetensors_file_has_any_name_and_of_several_weights_the_loaded_ones_are_named(model, capsys) -> None:
    torch.save({"ema": model.state_dict(), "model": model.state_dict()}, "both.pt")
    save_file(model.state_dict(), "weights.pt")
    for path in ("both.pt", "weights.pt"):
        own_file.load_weights(other := nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), Path(path))
        assert torch.equal(other[1].weight, model[1].weight)
    assert capsys.readouterr().err == "both.pt holds ema, model: model is loaded\n"


@pytest.mark.parametrize("count", [101, 0, -1, 2.5])
def test_a_count_of_images_that_the_track_does_not_have_is_refused(count, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchmarkError, match=rf"^count must be a whole number from 1 to 100, not {count}$"):
        benchmark.load_images("digits", count)


def test_paths_are_seen_from_where_they_are_typed(tmp_path, monkeypatch) -> None:
    (tmp_path / "submissions/Mine").mkdir(parents=True)
    (tmp_path / "params.yaml").touch()
    monkeypatch.chdir(tmp_path / "submissions/Mine")
    monkeypatch.setattr(paths, "_TYPED_IN", Path())
    paths.go_to_root()
    assert Path.cwd() == tmp_path
    assert paths.as_typed(Path("x.safetensors")) == Path("submissions/Mine/x.safetensors")
    assert paths.as_typed(Path("../../y")) == Path("y")
    assert paths.as_typed(tmp_path) == tmp_path
