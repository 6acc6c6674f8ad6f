"""Certificates: `certify(model, images, labels, **parameters) -> certified l2 radius per image`; one a file.

Mathematics only: tensors in, tensors out. A certificate that submissions can name also has `guarantee() -> str` and
`float32_gap(model, images, labels) -> (measured, proven)`. Submissions do not name smoothing.py: a track applies it to every
row.
"""
