"""XCiT, and the networks that it is compared with (Debenedetti 2022, "Adversarially Robust Vision Transformers", EPFL).

XCiT: El-Nouby et al. 2021, https://arxiv.org/abs/2106.09681; DeiT: Touvron et al. 2021, https://arxiv.org/abs/2012.12877;
CaiT: Touvron et al. 2021, https://arxiv.org/abs/2103.17239; ResNet-50 with GELU: Bai et al. 2021,
https://arxiv.org/abs/2111.05464. All are timm's. For small images the thesis sets the stride of the first two convolutions of
XCiT's stem to 1, which makes patch 16 into patch 4. What differs from the thesis stands in README.md.
"""

from __future__ import annotations

import warnings

from torch import nn

from benchmark.layers.normalise import Normalise
from benchmark.layers.vit import timm_vit
from benchmark.specs.data import DataSpec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # timm 1.0.9 decorates with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from timm.layers.activations import GELU  # one that takes `inplace`, as ResNet gives it
    from timm.models.cait import Cait
    from timm.models.resnet import Bottleneck, ResNet
    from timm.models.xcit import Xcit

RESNET50 = (3, 4, 6, 3)  # bottleneck blocks a stage


def build(
    data: DataSpec,
    *,
    architecture: str = "xcit",
    patch_size: int = 16,
    stride_one: int = 0,
    width: int = 128,
    depth: int = 12,
    heads: int = 4,
    drop_path: float = 0.05,
    initial: str = "timm",
) -> nn.Module:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes).

    Args:
        architecture: xcit, deit, cait or resnet50.
        patch_size: of xcit 8 or 16, before `stride_one` of its stem's convolutions lose their stride: each halves it.
        stride_one: how many, from the first on; the thesis takes 2 for 32x32 images. Of resnet50 1 takes the stem's stride
            and its pooling away.
        width: of the tokens; of resnet50 channels of the first stage, 64 in the full one.
        depth: blocks, beside which xcit and cait have two of class attention; of resnet50 12 is its 3, 4, 6, 3, others are
            so many in all, spread over the four stages.
        drop_path: chance at which a block's branch is left out of a training step.
        initial: weights as timm draws them, or as torch does ("torch"), which suits narrow networks.
    """
    builders = {"xcit": _xcit, "deit": _deit, "cait": _cait, "resnet50": _resnet}
    if architecture not in builders:
        raise ValueError(f"unknown architecture {architecture!r}; known: {', '.join(builders)}")
    if initial not in ("timm", "torch"):
        raise ValueError(f"unknown initial weights {initial!r}; known: timm, torch")
    if data.shape[1] != data.shape[2]:
        raise ValueError(f"images of {data.shape[1]}x{data.shape[2]} are not square")
    network = builders[architecture](data, patch_size, stride_one, width, depth, heads, drop_path)
    if initial == "torch":
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    return nn.Sequential(Normalise(), network)


def _xcit(
    data: DataSpec, patch_size: int, stride_one: int, width: int, depth: int, heads: int, drop_path: float
) -> nn.Module:
    """timm's XCiT with the first `stride_one` convolutions of its stem at stride 1; LayerScale from 1, as of depth 12."""
    if patch_size not in (8, 16) or width % patch_size or width % heads:
        raise ValueError(
            f"xcit's stem is for patch_size 8 or 16, not {patch_size}, which and the {heads} heads must divide width {width}"
        )
    network = Xcit(
        img_size=data.shape[1] * 2**stride_one,  # what a stem of full stride would need for as many tokens
        patch_size=patch_size,
        in_chans=data.shape[0],
        num_classes=data.classes,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        drop_path_rate=drop_path,
        eta=1.0,
        tokens_norm=width > 128,  # as timm's N12 and S12, M12, L12
    )
    convolutions = [m for m in network.patch_embed.proj.modules() if isinstance(m, nn.Conv2d)]
    if not 0 <= stride_one < len(convolutions):
        raise ValueError(f"the stem has {len(convolutions)} convolutions; stride_one {stride_one} should be fewer")
    for convolution in convolutions[:stride_one]:
        convolution.stride = (1, 1)
    return network


def _deit(
    data: DataSpec, patch_size: int, stride_one: int, width: int, depth: int, heads: int, drop_path: float
) -> nn.Module:
    return timm_vit(
        img_size=data.shape[1],
        patch_size=_patch(data, patch_size, stride_one),
        in_chans=data.shape[0],
        num_classes=data.classes,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        drop_path_rate=drop_path,
    )


def _cait(
    data: DataSpec, patch_size: int, stride_one: int, width: int, depth: int, heads: int, drop_path: float
) -> nn.Module:
    """LayerScale from 0.1, as the thesis says of CaiT up to depth 18; the last two blocks attend to the class alone."""
    return Cait(
        img_size=data.shape[1],
        patch_size=_patch(data, patch_size, stride_one),
        in_chans=data.shape[0],
        num_classes=data.classes,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        drop_path_rate=drop_path,
        init_values=0.1,
    )


def _patch(data: DataSpec, patch_size: int, stride_one: int) -> int:
    """The patch that gives as many tokens as xcit has with the same options."""
    patch, rest = divmod(patch_size, 2**stride_one)
    if rest or data.shape[1] % patch:
        raise ValueError(f"patch_size {patch_size} with stride_one {stride_one} does not tile {data.shape[1]} pixels")
    return patch


def _resnet(
    data: DataSpec, _patch_size: int, stride_one: int, width: int, depth: int, _heads: int, drop_path: float
) -> nn.Module:
    layers = RESNET50 if depth == 12 else tuple(depth // 4 + (stage < depth % 4) for stage in range(4))
    if min(layers) < 1:
        raise ValueError(f"resnet50 has four stages; depth {depth} leaves one of them empty")
    network = ResNet(
        Bottleneck,
        layers,
        in_chans=data.shape[0],
        num_classes=data.classes,
        stem_width=width,
        channels=tuple(width * 2**stage for stage in range(4)),
        act_layer=GELU,
        drop_path_rate=drop_path,
    )
    if stride_one:
        network.conv1.stride, network.maxpool = (1, 1), nn.Identity()
    return network
