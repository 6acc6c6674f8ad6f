"""Common corruptions: each copy drawn by seed, name, severity and index alone; counted from the evidence; resumed."""

from __future__ import annotations

import builtins
import itertools

import numpy as np
import pytest
from tiny_colours import textures

from benchmark.data import corruptions
from benchmark.data.corruptions import corrupt
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import COMMON, EXTRA

# of each kind of random number; without compilation
QUICK = ("gaussian_noise", "impulse_noise", "snow", "fog", "pixelate")


def distance(images: np.ndarray, name: str, severity: int) -> float:
    return float(np.abs(corrupt(images, range(len(images)), name, severity, 0) - images).mean())


@pytest.mark.parametrize("name", QUICK)
def test_copies_depend_on_seed_severity_and_index_alone_and_are_255ths_in_the_box(name) -> None:
    images = textures(6, (40, 33))
    found = corrupt(images, range(6), name, 2, 7)
    assert (found.shape, found.dtype) == (images.shape, np.float32)
    assert 0 <= found.min() <= found.max() <= 1
    assert np.array_equal(found, np.rint(found * 255).astype(np.float32) / np.float32(255))
    assert not np.array_equal(found, images)
    np.random.seed(3)
    assert np.array_equal(corrupt(images, range(6), name, 2, 7), found)
    assert np.array_equal(corrupt(images[[4, 1]], [4, 1], name, 2, 7), found[[4, 1]])
    for change in ((range(6), name, 3, 7), (range(6), name, 2, 8), (range(1, 7), name, 2, 7)):
        differs = [not np.array_equal(a, b) for a, b in zip(corrupt(images, *change), found, strict=True)]
        assert all(differs) or (name == "pixelate" and change[1:3] == (name, 2))  # pixelate draws nothing


def test_the_same_index_draws_something_else_for_another_corruption() -> None:
    grey = np.full((1, 3, 32, 32), 128 / 255, dtype=np.float32)
    drawn = itertools.product(("gaussian_noise", "shot_noise"), (1, 2))
    noise = [corrupt(grey, [0], name, severity, 0) > grey for name, severity in drawn]
    for one, other in itertools.combinations(noise, 2):
        assert 0.4 < (one == other).mean() < 0.6  # independent signs


def test_the_noise_is_of_imagenet_c_strength() -> None:
    """The strengths that the documentation names: deviation 0.08 and 0.12, where CIFAR-10-C has 0.04 and 0.06."""
    grey = np.full((8, 3, 32, 32), 128 / 255, dtype=np.float32)
    for severity, deviation in ((1, 0.08), (2, 0.12)):
        noise = corrupt(grey, range(8), "gaussian_noise", severity, 0) - grey
        assert noise.std() == pytest.approx(deviation, rel=0.03)


@pytest.mark.parametrize("name", ["gaussian_noise", "contrast", "jpeg_compression", "gaussian_blur"])
def test_distance_grows_with_severity(name) -> None:
    images = textures(8)
    found = [distance(images, name, severity) for severity in (1, 2, 3, 4, 5)]
    assert found == sorted(found)
    assert found[4] > 1.5 * found[0] > 0


def test_numpys_global_generator_stays_as_it_was_and_no_images_give_none() -> None:
    np.random.seed(5)
    expected = np.random.random(3)
    np.random.seed(5)
    corrupt(textures(1), [0], "gaussian_noise", 1, 0)
    assert np.array_equal(np.random.random(3), expected)
    assert corrupt(textures(1)[:0], [], "fog", 1, 0).shape == (0, 3, 32, 32)


def test_spatter_that_misses_is_drawn_anew_instead_of_a_black_image() -> None:
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
    found = corrupt(images, range(150), "spatter", 1, 0)
    assert found.min() >= np.float32(0.2) - 1e-6  # drops are lighter than the image
    assert (found.max((1, 2, 3)) > 0.25).all()


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
def test_what_cannot_be_corrupted_is_refused_in_one_line(change, message) -> None:
    given = {"images": textures(1), "indices": [0], "name": "fog", "severity": 1, "seed": 0} | change
    with pytest.raises(BenchmarkError, match=rf"^[^\n]*{message}[^\n]*$"):
        corrupt(**given)


def test_a_missing_package_is_one_line_with_what_to_install(monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name == "imagecorruptions":
            raise ImportError("No module named 'imagecorruptions'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for call in (lambda: corrupt(textures(1), [0], "fog", 1, 0), corruptions.versions):
        with pytest.raises(
            BenchmarkError, match=r"^[^\n]*imagecorruptions-imaug.* pip install --no-deps .*\.\[corru.*$"
        ):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMON + EXTRA)
def test_every_corruption_at_every_severity(name) -> None:
    """Glass blur is compiled and keeps a generator of its own; frost reads photographs; all depend on the index alone."""
    extremes = np.stack([np.full((3, 32, 32), value, np.float32) for value in (0, 128 / 255, 1)])
    images, moved = np.concatenate([textures(5), extremes]), []
    for severity in (1, 2, 3, 4, 5):
        found = corrupt(images, range(8), name, severity, 0)
        assert (found.shape, found.dtype) == (images.shape, np.float32)
        assert 0 <= found.min() <= found.max() <= 1
        assert np.array_equal(corrupt(images[::-1], range(8)[::-1], name, severity, 0), found[::-1])
        moved.append(float(np.abs(found[:5] - images[:5]).mean()))
    assert min(moved) > 0.003
    if name not in ("glass_blur", "frost", "saturate", "spatter", "fog"):  # whose severities are of several kinds
        assert moved[4] > moved[0]
