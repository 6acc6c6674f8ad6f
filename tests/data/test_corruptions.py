"""Common corruptions: each copy depends on seed, name, severity and index alone."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from tiny_sources import textures

from benchmark.data import corruptions
from benchmark.data.corruptions import corrupt
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import COMMON, EXTRA

# every kind of random number, without compilation
QUICK = ("gaussian_noise", "impulse_noise", "snow", "fog", "pixelate")


@pytest.mark.parametrize("name", QUICK)
def test_copies_depend_on_seed_severity_and_index_alone_and_are_255ths_in_the_box(name) -> None:
    images = textures(6, (40, 33))
    copies = corrupt(images, range(6), name, 2, 7)
    assert (copies.shape, copies.dtype) == (images.shape, np.float32)
    assert 0 <= copies.min() <= copies.max() <= 1
    assert np.array_equal(copies, np.rint(copies * 255).astype(np.float32) / np.float32(255))
    assert not np.array_equal(copies, images)
    np.random.seed(3)
    expected = np.random.random(3)
    np.random.seed(3)
    assert np.array_equal(corrupt(images, range(6), name, 2, 7), copies)
    assert np.array_equal(np.random.random(3), expected)  # numpy's generator is unchanged
    assert np.array_equal(corrupt(images[[4, 1]], [4, 1], name, 2, 7), copies[[4, 1]])
    assert corrupt(images[:0], [], name, 2, 7).shape == (0, *images.shape[1:])
    for change in ((range(6), name, 3, 7), (range(6), name, 2, 8), (range(1, 7), name, 2, 7)):
        differs = [not np.array_equal(a, b) for a, b in zip(corrupt(images, *change), copies, strict=True)]
        assert all(differs) or (name == "pixelate" and change[1:3] == (name, 2))  # pixelate draws nothing


def test_noise_is_independent_between_corruptions_and_of_imagenet_cs_strength() -> None:
    """The documentation names the deviations 0.08 and 0.12; CIFAR-10-C has 0.04 and 0.06."""
    grey = np.full((8, 3, 32, 32), 128 / 255, dtype=np.float32)
    settings = itertools.product(("gaussian_noise", "shot_noise"), (1, 2))
    signs = [corrupt(grey[:1], [0], name, severity, 0) > grey[:1] for name, severity in settings]
    for first, second in itertools.combinations(signs, 2):
        assert 0.4 < (first == second).mean() < 0.6
    for severity, deviation in ((1, 0.08), (2, 0.12)):
        noise = corrupt(grey, range(8), "gaussian_noise", severity, 0) - grey
        assert noise.std() == pytest.approx(deviation, rel=0.03)


def test_spatter_that_misses_is_drawn_again_instead_of_a_black_image() -> None:
    """The package divides 0 by 0 there, for about one image of 30 at 32x32."""
    images = np.full((150, 3, 32, 32), 0.2, dtype=np.float32)
    library, missed = corruptions._library(), 0
    for index in range(len(images)):
        words = np.random.SeedSequence([0, int.from_bytes(b"spatter"), 1, index, 0])
        np.random.seed(int(words.generate_state(1)[0]))
        with np.errstate(invalid="ignore"):
            dark = np.full((32, 32, 3), 51, np.uint8)
            missed += not library.corrupt(dark, severity=1, corruption_name="spatter").any()
    assert missed > 0
    copies = corrupt(images, range(150), "spatter", 1, 0)
    assert copies.min() >= np.float32(0.2) - 1e-6  # drops are lighter than the image
    assert (copies.max((1, 2, 3)) > 0.25).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((1, 1, 8, 8), np.float32)}, r"32x32 pixels or more, not \(1, 1, 8, 8\)"),
        ({"images": np.zeros((1, 1, 32, 32), np.float32)}, "colour images"),
        ({"images": np.zeros((1, 3, 31, 32), np.float32)}, "32x32 pixels or more"),
        ({"images": np.full((1, 3, 32, 32), 1.5, np.float32)}, r"images of \[0, 1\]"),
        ({"images": np.full((1, 3, 32, 32), np.nan, np.float32)}, r"images of \[0, 1\]"),
        ({"indices": [0, 1]}, "2 indices for 1 images"),
    ],
)
def test_images_that_cannot_be_corrupted_are_refused_in_one_line(change, message) -> None:
    given = {"images": textures(1), "indices": [0], "name": "fog", "severity": 1, "seed": 0} | change
    with pytest.raises(BenchmarkError, match=rf"^[^\n]*{message}[^\n]*$"):
        corrupt(**given)


def test_a_missing_package_is_one_line_with_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    message = r"^[^\n]*imagecorruptions-imaug.* pip install --no-deps .*\.\[corru.*$"
    for call in (lambda: corrupt(textures(1), [0], "fog", 1, 0), corruptions.versions):
        with pytest.raises(BenchmarkError, match=message):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMON + EXTRA)
def test_every_corruption_at_every_severity(name) -> None:
    """Glass blur is compiled and has its own generator; frost reads photographs; all depend on the index alone."""
    extremes = np.stack([np.full((3, 32, 32), value, np.float32) for value in (0, 128 / 255, 1)])
    images, moved = np.concatenate([textures(5), extremes]), []
    for severity in (1, 2, 3, 4, 5):
        copies = corrupt(images, range(8), name, severity, 0)
        assert (copies.shape, copies.dtype) == (images.shape, np.float32)
        assert 0 <= copies.min() <= copies.max() <= 1
        assert np.array_equal(corrupt(images[::-1], range(8)[::-1], name, severity, 0), copies[::-1])
        moved.append(float(np.abs(copies[:5] - images[:5]).mean()))
    assert min(moved) > 0.003
    if name not in ("glass_blur", "frost", "saturate", "spatter", "fog"):  # whose severities are of several kinds
        assert moved[4] > 1.5 * moved[0]
        assert moved == sorted(moved) or name == "snow"
