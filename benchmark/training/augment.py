"""Augmentation of training images: torchvision's crop, flip and jitter, timm's RandAugment, erasing, mixup and CutMix.

Draws from the generators of torch, numpy and Python, which the loop seeds every epoch.
"""

from __future__ import annotations

import torch
from timm.data.auto_augment import rand_augment_transform
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing
from torch import nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from benchmark.specs.training import Augmentation

Batch = tuple[torch.Tensor, torch.Tensor]


class Augment:
    """images (n, c, h, w) float32 in [0, 1] and labels (n,) int64 to the like; labels (n, classes) float32 when mixed.

    RandAugment works on 8 bits. Erased rectangles are black, since images are not normalised here. Of an odd number of
    images mixup and CutMix leave out the last.
    """

    def __init__(self, spec: Augmentation, shape: tuple[int, int, int], classes: int) -> None:
        channels, *side = shape
        steps: list[nn.Module] = [v2.RandomCrop(side, padding=spec.crop)] if spec.crop else []
        steps += [v2.RandomHorizontalFlip()] if spec.flip else []
        steps += [v2.ColorJitter(spec.jitter, spec.jitter, spec.jitter)] if spec.jitter else []
        self.single = v2.Compose(steps) if steps else None
        grey = 128 if channels == 1 else (128, 128, 128)  # what rotations and shifts uncover
        most = {"img_mean": grey, "magnitude_max": 9.9}  # at 10 timm posterizes to 0 bits, which Pillow refuses
        config = f"rand-n{spec.randaugment}-m{spec.magnitude}-mstd0.5-inc1"
        self.randaugment = rand_augment_transform(config, most) if spec.randaugment else None
        self.erasing = RandomErasing(spec.erasing, device="cpu") if spec.erasing else None
        mixed = spec.mixup or spec.cutmix
        self.mixup = Mixup(spec.mixup, spec.cutmix, label_smoothing=0.0, num_classes=classes) if mixed else None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        images, labels = images.cpu(), labels.cpu()
        if self.single:
            images = torch.stack([self.single(image) for image in images])
        if self.randaugment:
            images = torch.stack([self._randaugmented(image) for image in images])
        images = images.clone()  # what follows works in place
        if self.erasing:
            images = self.erasing(images)
        if self.mixup:
            images, labels = self._mixed(images, labels)
        return images.clamp(0, 1), labels

    def _randaugmented(self, image: torch.Tensor) -> torch.Tensor:
        assert self.randaugment is not None
        return functional.to_dtype(
            functional.pil_to_tensor(self.randaugment(functional.to_pil_image(image))), torch.float32, scale=True
        )

    def _mixed(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        assert self.mixup is not None
        even = len(labels) // 2 * 2
        shares = torch.nn.functional.one_hot(labels, self.mixup.num_classes).float()
        if even:
            images[:even], shares[:even] = self.mixup(images[:even], labels[:even])
        return images, shares
