"""Measures that any submission's study may ask for, one a file, found by its name:
`measure(model, images, labels, *, seed, **parameters) -> dict`, as in a submission's own measures.py, which is asked first.

images (n, c, h, w) float32 in [0, 1], labels (n,) int64. A keyword-only parameter `blocks` gets the model's encoder blocks,
[(name, module)], one named `attention` its attention's weights by layer and head (benchmark/layers/submitted). The dict
holds finite numbers; lists of them, which are curves over the places in its `x`; dicts from class to points; and tensors
(n,), one value an image, NaN where there is none, which stand in verdicts.parquet alone.
"""
