"""Data: pinned sources to labelled images in [0, 1]; one reader a file, `read(spec) -> pools`.

corruptions.py, images.py and prepare.py are no readers.
"""
