"""Tracks that are wrong get one clear line."""

from __future__ import annotations

import pytest
import yaml

from benchmark.loading import tracks
from benchmark.runtime import yaml_file
from benchmark.runtime.errors import BenchmarkError


def test_an_unknown_key_in_a_track_is_refused(tmp_path, monkeypatch) -> None:
    text = (tracks.FOLDER / "digits.yaml").read_text()
    (tmp_path / "digits.yaml").write_text(text.replace("certified_radii", "certified_radius"))
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    with pytest.raises(BenchmarkError, match="unknown key 'certified_radius'; did you mean 'certified_radii'"):
        tracks.load("digits")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sigma: 0", "smoothing.sigma: Input should be greater than 0"),
        ("sigma: inf", "smoothing.sigma: Input should be a finite number"),
        ("alpha: 1", "smoothing.alpha: Input should be less than 1"),
        ("n: 0", "smoothing.n: Input should be greater than 0"),
        ("n: 20", "smoothing: n 20 cannot be halved for 6 looks"),
        ("sigmas: 1", "unknown key 'smoothing.sigmas'; did you mean 'sigma'?"),
    ],
)
def test_bad_smoothing_rules_get_one_clear_line(tmp_path, monkeypatch, change, message) -> None:
    key, _, value = change.partition(": ")
    content = yaml_file.read_yaml(tracks.FOLDER / "digits.yaml")
    content["smoothing"][key] = float(value)
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    with pytest.raises(BenchmarkError) as raised:
        tracks.load("digits")
    assert message in str(raised.value)
