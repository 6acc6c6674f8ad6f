"""Data: labelled images in [0, 1] from pinned sources. A reader is one file that defines `read(spec) -> pools`.

Not readers: corruptions.py, images.py, prepare.py and tensors.py.
"""
