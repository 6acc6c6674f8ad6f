"""The reader of SST-2's files: codes of norm 1, equal on every machine, and refusals in one line."""

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
def test_words_are_codes_of_norm_1_around_a_half_and_equal_on_every_machine(width) -> None:
    codes = sentences.encode(["A good film", "good"], (1, 4, width)) / sentences.levels((1, 4, width)) - 0.5
    assert np.allclose(np.linalg.norm(codes[0, 0], axis=1), [1, 1, 1, 0])
    assert np.array_equal(codes[0, 0, 1], codes[1, 0, 0])
    assert abs(codes[0, 0, 0] @ codes[0, 0, 1]) < 0.9
    assert "".join("+" if s > 0 else "-" for s in sentences.signs("good", 16)) == "+------+-++--++-"


def test_sst_2_s_files_are_read(tmp_path) -> None:
    given = write(tmp_path, "sentence\tlabel\nhide new secretions from the parental units \t0\nFine\t1\n")
    pools = sentences.read(given)
    assert pools["train"].pixels.shape == (2, 1, 4, 64)
    assert pools["train"].labels.tolist() == [0, 1]
    assert np.array_equal(pools["train"].pixels[1], pools["test"].pixels[0])
    assert pools["train"].levels == 16


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("", "empty or no UTF-8"),
        ("text\tlabel\nfine\t1\n", "the first line should be"),
        ("sentence\tlabel\n", "no sentence"),
        ("sentence\tlabel\nfine 1\n", "line 2: should be a sentence, a tab"),
        ("sentence\tlabel\nfine\t1\nbad\tzero\n", "line 3"),
        ("sentence\tlabel\n \t1\n", "line 2"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, train, message) -> None:
    with pytest.raises(BenchmarkError, match=message):
        sentences.read(write(tmp_path, train))


def test_the_message_for_missing_files_names_source_and_folder() -> None:
    message = r"^.*https://gluebenchmark.com/tasks\) and put its train.tsv and dev.tsv into data/SST-2$"
    with pytest.raises(BenchmarkError, match=message):
        sentences.read(tracks.load("sst2").data)


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
