"""Certificates: one a file that defines `certify(model, images, labels, **parameters) -> certified l2 radius of each image`.

Mathematics only: tensors in, tensors out. A certificate that submissions can name also defines `guarantee() -> str` and
`float32_gap(model, images, labels) -> (measured, proven)`. Submissions cannot name smoothing.py, which a track applies to
every row.
"""
