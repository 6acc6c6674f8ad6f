"""`benchmark.load_model`: a trained row for a user's own program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny_record
import torch
from safetensors.torch import load_file
from tiny_linear_row import NAMES, ROW

import benchmark
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED
from benchmark.sandbox.confinement import PARTS, available
from benchmark.specs.base import to_json

TRACK, NAME = NAMES


def test_it_is_the_trained_model_ready_to_use_from_anywhere_in_the_checkout(linear_row, monkeypatch) -> None:
    weights = load_file(ROW / "train/model.safetensors")
    monkeypatch.chdir(linear_row.root / "submissions")
    before = Path.cwd()
    model = benchmark.load_model(NAME, track=TRACK)
    assert Path.cwd() == before
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    images = torch.rand(3, 1, 8, 8)
    expected = images.flatten(1) @ weights["1.weight"].T + weights["1.bias"]
    torch.testing.assert_close(model(images), expected)


def test_published_weights_are_loaded_where_nothing_is_built_and_must_be_the_records(linear_row) -> None:
    built, images = benchmark.load_model(NAME, track=TRACK), torch.rand(3, 1, 8, 8)
    folder = PUBLISHED / TRACK
    (folder / "weights").mkdir(parents=True)
    path = (ROW / "train/model.safetensors").rename(folder / "weights" / f"{NAME}.safetensors")
    words = f"{NAME} has no published weights and is not built on tiny; run `rvb repro {NAME} --track tiny`"
    for name, track, refusal in (
        (NAME, TRACK, re.escape(words)), ("Tiny2026Linear-smal", TRACK, "did you mean 'small'"),
        (NAME, "digits", f'^{NAME} is not on track digits; it is on tiny: give track="tiny"$'),
        (5, TRACK, "^the row is a int; give its name"), (NAME, 5, "^the track is a int; give its name"),
    ):  # fmt: skip
        with pytest.raises(BenchmarkError, match=refusal):  # there is no Record of the weights
            benchmark.load_model(name, track=track)
    record = tiny_record.record("Tiny2026Linear", 0, 0).model_copy(update={"sha256": {"weights": files.sha256_file(path)}})
    files.write(folder / f"{NAME}.json", to_json(record))
    assert torch.equal(benchmark.load_model(NAME, track=TRACK)(images), built(images))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(BenchmarkError, match=r"its Record says .*; bring it back with git"):
        benchmark.load_model(NAME, track=TRACK)
    files.write_json(folder / f"{NAME}.json", [])
    with pytest.raises(BenchmarkError, match=rf"^{folder}/{NAME}\.json: the file: .*; bring it back with git"):
        benchmark.load_model(NAME, track=TRACK)


def test_published_rows_load_outside_a_checkout(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = torch.rand(2, 1, 8, 8)
    assert benchmark.load_model("Wong2020Fast-linf")(images).shape == (2, 10)
    large = benchmark.load_model("Havens2024LoFAST-wide_margin", track="cifar10_jpeg")
    assert large(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox")
def test_in_the_sandbox_it_gives_the_same_logits_and_gradients(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = torch.rand(2, 1, 8, 8, requires_grad=True)
    plain, held = (benchmark.load_model("Wong2020Fast-linf", sandbox=sandbox) for sandbox in (False, True))
    try:
        gradients = [torch.autograd.grad(model(images).sum(), images)[0] for model in (plain, held)]
        assert torch.equal(plain(images), held(images))
        assert torch.equal(*gradients)
    finally:
        held.close()


def test_published_weights_are_those_of_the_record_and_every_track_has_some() -> None:
    weights = sorted(PUBLISHED.glob("*/weights/*.safetensors"))
    assert {path.parents[1].name for path in weights} >= {"digits", "cifar10_jpeg"}
    for path in weights:
        record = json.loads((path.parents[1] / f"{path.stem}.json").read_text())
        assert files.sha256_file(path) == record["sha256"]["weights"], path
        assert path.stat().st_size <= 16 * 2**20, path
