"""What training draws follows from names and numbers, such as (seed, epoch)."""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np
import torch


def seed(*parts: int | str) -> None:
    """Seeds the generators of torch, numpy and Python."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    value = int.from_bytes(digest[:8], "big") >> 1
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
