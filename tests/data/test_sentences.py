"""The reader of SST-2's files: codes of norm 1, the same everywhere, and one clear line for what it cannot read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_sources import write_sentences

from benchmark.data import prepare, sentences
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.data import DataSpec


def spec(folder: Path, shape: tuple[int, int, int] = (1, 4, 64)) -> DataSpec:
    return DataSpec(source="sentences", path=str(folder), validation=1, shape=shape, classes=2)


def write(folder: Path, train: str) -> DataSpec:
    write_sentences(folder, train)
    return spec(folder)


@pytest.mark.parametrize("width", [16, 36, 64])
def test_words_are_codes_of_norm_1_around_a_half(width) -> None:
    codes = sentences.encode(["A good film", "good"], (1, 4, width)) / sentences.levels((1, 4, width)) - 0.5
    assert np.allclose(np.linalg.norm(codes[0, 0], axis=1), [1, 1, 1, 0])
    assert np.array_equal(codes[0, 0, 1], codes[1, 0, 0])
    assert abs(codes[0, 0, 0] @ codes[0, 0, 1]) < 0.9


def test_a_code_is_the_same_on_every_machine() -> None:
    assert "".join("+" if s > 0 else "-" for s in sentences.signs("good", 16)) == "+------+-++--++-"


def test_sst_2_s_files_are_read(tmp_path) -> None:
    given = write(tmp_path, "sentence\tlabel\nhide new secretions from the parental units \t0\nFine\t1\n")
    pools = sentences.read(given)
    assert pools["train"].pixels.shape == (2, 1, 4, 64)
    assert pools["train"].labels.tolist() == [0, 1]
    assert np.array_equal(pools["train"].pixels[1], pools["test"].pixels[0])
    assert pools["train"].levels == 16


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("", "empty or no UTF-8"),
        ("text\tlabel\nfine\t1\n", "the first line should be"),
        ("sentence\tlabel\n", "no sentence"),
        ("sentence\tlabel\nfine 1\n", "line 2: should be a sentence, a tab"),
        ("sentence\tlabel\nfine\t1\nbad\tzero\n", "line 3"),
        ("sentence\tlabel\n \t1\n", "line 2"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_line(tmp_path, train, words) -> None:
    with pytest.raises(BenchmarkError, match=words):
        sentences.read(write(tmp_path, train))


def test_missing_files_say_where_to_get_them_and_where_to_put_them() -> None:
    with pytest.raises(BenchmarkError) as raised:
        sentences.read(tracks.load("sst2").data)
    for words in ("data/SST-2", "https://gluebenchmark.com/tasks", "train.tsv and dev.tsv"):
        assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("shape", [(3, 4, 64), (1, 4, 60), (1, 4, 1)])
def test_a_shape_that_is_no_sentence_is_refused(tmp_path, shape) -> None:
    write(tmp_path, "sentence\tlabel\nfine\t1\n")
    with pytest.raises(BenchmarkError, match="sentences need the shape"):
        sentences.read(spec(tmp_path, shape))


def test_the_bundled_reviews_share_no_sentence_between_splits() -> None:
    track = tracks.load("reviews")
    splits = prepare.split(track.data, prepare.read(track.data))
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [380, 60, 120]
    rows = [{row.tobytes() for row in splits[name].pixels} for name in ("train", "validation", "test")]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]
