"""timm's ViT starts with the weights that timm 1.0.9 draws, in whichever version is installed."""

from __future__ import annotations

import hashlib

import pytest
import torch

from benchmark.layers.vit import timm_vit


@pytest.mark.parametrize(
    ("weight_init", "digest", "following"),
    [("skip", "f459d62d5d6e4675", 0.027593612670898438), ("", "7711b04a2f40bda3", 0.36213523149490356)],
)
def test_a_new_network_has_the_weights_of_timm_1_0_9(weight_init, digest, following) -> None:
    torch.manual_seed(0)
    vit = timm_vit(
        img_size=8, patch_size=4, in_chans=1, num_classes=4, embed_dim=8, depth=2, num_heads=2, weight_init=weight_init
    )
    weights = sorted(vit.state_dict().items())
    assert all(torch.isfinite(tensor).all() for _, tensor in weights)
    found = hashlib.sha256(b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in weights)).hexdigest()
    assert found[:16] == digest
    assert float(torch.rand(())) == following, "the generator goes on from the same place"
