"""Imports every file that declares a `LayerBound`, a family of layers each."""

from . import (  # noqa: F401
    activations,
    attention,
    attention_grid,
    competitive_attention,
    composite,
    l2_attention,
    layernorm,
    linear,
    projection,
    scaled_cosine,
    sll,
    token_convolution,
)
