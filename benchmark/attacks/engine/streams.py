"""Random numbers for one image: they do not depend on its batch, its place in the batch, or the machine that attacks it."""

from __future__ import annotations

import numpy as np
import torch


def generator(seed: int, image: int, *purpose: int) -> torch.Generator:
    """The stream of evaluation image `image` for one purpose (such as an attack and its target), on the CPU.

    Streams of different (seed, image, purpose) are independent: numpy's SeedSequence mixes them. They differ whenever the
    numbers do, as long as seeds and numbers are below 2**32 and purposes have one length.
    """
    state = np.random.SeedSequence((seed, image, *purpose)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> 1))
