"""Tracks and params.yaml that are wrong get one clear line."""

from __future__ import annotations

import pytest
import yaml

from benchmark.loading import tracks
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import yaml_file
from benchmark.runtime.errors import BenchmarkError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"certified_radius": [0.1]}, "unknown key 'certified_radius'; did you mean 'certified_radii'"),
        ({"smoothing": {"sigma": 0}}, "smoothing.sigma: Input should be greater than 0"),
        ({"smoothing": {"sigma": float("inf")}}, "smoothing.sigma: Input should be a finite number"),
        ({"smoothing": {"alpha": 1}}, "smoothing.alpha: Input should be less than 1"),
        ({"smoothing": {"n": 0}}, "smoothing.n: Input should be greater than 0"),
        ({"smoothing": {"n": 20}}, "smoothing: n 20 cannot be halved for 6 looks"),
        ({"smoothing": {"sigmas": 1}}, "unknown key 'smoothing.sigmas'; did you mean 'sigma'?"),
        ({"corruptions": {"names": ["fog"]}}, "colour images of 32x32 pixels or more, these are 1x8x8"),
        ({"corruptions": {"severitys": [1]}}, "corruptions.severitys"),
    ],
)
def test_bad_tracks_get_one_clear_line(tmp_path, monkeypatch, change, message) -> None:
    content = yaml_file.read_yaml(tracks.FOLDER / "digits.yaml")
    for key, value in change.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    with pytest.raises(BenchmarkError) as raised:
        tracks.load("digits")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("train: {device: cpu, precison: 16-mixed}", r"unknown key 'train\.precison'; did you mean 'precision'"),
        ("arithmetic: portabel", "arithmetic.*'portable' or 'native'"),
    ],
)
def test_bad_params_get_one_clear_line(tmp_path, monkeypatch, params, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(params)
    with pytest.raises(BenchmarkError, match=message):
        run_settings()
