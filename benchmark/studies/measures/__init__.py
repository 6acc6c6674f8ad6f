"""Measures that any submission's study may use, one a file, found by its name. A submission's measures.py goes first.

`measure(model, images, labels, *, seed, **parameters) -> dict` takes images (n, c, h, w) float32 in [0, 1] and labels (n,)
int64. A keyword-only parameter `attention` gets the model's attention weights by layer and head
(benchmark/layers/submitted_attention.py), and `training` the track's training images and labels.

The dict holds finite numbers; lists of them, which are curves over the places in its `x`; dicts from class to points; and
tensors (n,), one value an image, NaN where there is none, which are kept in verdicts.parquet only.
"""
