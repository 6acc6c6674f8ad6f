"""Certificates: `certify(model, images, labels, **parameters) -> certified l2 radius per image`; one a file.

Mathematics only: tensors in, tensors out. A file that can speak for models also has `guarantee() -> str`
and `float32_gap(model, images, labels) -> (measured, proven)`. smoothing.py is no file that a submission names: a track
asks it of every row.
"""
