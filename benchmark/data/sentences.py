"""Reader of labelled sentences in the format of SST-2 (GLUE): <path>/train.tsv and <path>/dev.tsv.

The first line is a header; every other line is sentence<TAB>label. dev.tsv is the test set: GLUE's test.tsv has no labels.

A sentence becomes an array (1, tokens, width) with one row a word, in lower case, cut or padded to `tokens`. A word's code
has entries +-1/sqrt(width), with signs from SHAKE-256 of the word: it has norm 1, and codes of two words are nearly
orthogonal. Padding is a row of zeros. The array holds code + 1/2, exactly, so l2 radii are those of the code itself.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np

from benchmark.data.images import Images
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

SOURCE = "download SST-2, The Stanford Sentiment Treebank, from the tasks page of GLUE (https://gluebenchmark.com/tasks)"


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pools "train" and "test".

    Raises:
        BenchmarkError: a missing file, a line that is not `sentence<TAB>label`, or a shape other than (1, tokens, width)
            with width a square.
    """
    root = Path(spec.path or "data")
    return {"train": _read(root / "train.tsv", spec.shape), "test": _read(root / "dev.tsv", spec.shape)}


def _read(path: Path, shape: tuple[int, int, int]) -> Images:
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; {SOURCE} and put its train.tsv and dev.tsv into {path.parent}")
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
    except ValueError:  # a UnicodeDecodeError too
        raise BenchmarkError(f"{path} is empty or no UTF-8 text; it should hold sentence<TAB>label lines") from None
    if header.split("\t") != ["sentence", "label"]:
        raise BenchmarkError(f"{path}: the first line should be sentence<TAB>label, it is {header[:60]!r}")
    sentences, labels = [], []
    for number, line in enumerate(lines, start=2):
        sentence, tab, label = line.rpartition("\t")
        if not tab or not label.isdigit() or not sentence.split():
            raise BenchmarkError(f"{path}, line {number}: should be a sentence, a tab and a whole number: {line[:60]!r}")
        sentences.append(sentence)
        labels.append(int(label))
    if not sentences:
        raise BenchmarkError(f"{path} holds no sentence below its first line")
    return Images(encode(sentences, shape), np.array(labels, dtype=np.int64), levels=levels(shape))


def levels(shape: tuple[int, int, int]) -> int:
    """Return 2 sqrt(width): then 1/2 and 1/2 +- 1/sqrt(width) are whole numbers of levels.

    Raises:
        BenchmarkError: the shape is not (1, tokens, width) with width a square of at most 127^2.
    """
    root = math.isqrt(shape[2])
    if shape[0] != 1 or root**2 != shape[2] or not 2 <= root <= 127:
        size = "x".join(map(str, shape))
        raise BenchmarkError(f"sentences need the shape 1 x tokens x width, width a square such as 64; it is {size}")
    return 2 * root


def encode(sentences: list[str], shape: tuple[int, int, int]) -> np.ndarray:
    """Return (n, 1, tokens, width) uint8 pixels, in `levels(shape)` levels."""
    _, tokens, width = shape
    middle = levels(shape) // 2
    pixels = np.full((len(sentences), *shape), middle, dtype=np.uint8)
    for i, sentence in enumerate(sentences):
        for token, word in enumerate(sentence.lower().split()[:tokens]):
            pixels[i, 0, token] = middle + 2 * signs(word, width)
    return pixels


def signs(word: str, width: int) -> np.ndarray:
    """Return the word's signs, (width,) int8 of -1 and 1, the same on every machine."""
    bits = hashlib.shake_256(word.encode()).digest((width + 7) // 8)
    return 2 * np.unpackbits(np.frombuffer(bits, dtype=np.uint8))[:width].astype(np.int8) - 1
