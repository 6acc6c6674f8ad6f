"""Augmentation of training images: torchvision's crop, flip and jitter, timm's RandAugment, erasing, mixup and CutMix.

It draws from the CPU generators of torch, numpy and Python, which the loop seeds every epoch. Images stay on their device,
except for RandAugment, which is Pillow's.
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
    """A random map of images (n, c, h, w) float32 in [0, 1] and labels (n,) int64; mixed labels are (n, classes) float32.

    RandAugment works on 8 bits. Erased rectangles are black, since images are not normalised here. Mixup and CutMix leave out
    the last of an odd number of images.
    """

    def __init__(self, spec: Augmentation, shape: tuple[int, int, int], classes: int) -> None:
        channels, *side = shape
        self.crop, self.flip = spec.crop, spec.flip
        steps: list[nn.Module] = [v2.RandomCrop(side, padding=spec.crop)] if spec.crop else []
        steps += [v2.RandomHorizontalFlip()] if spec.flip else []
        steps += [v2.ColorJitter(spec.jitter, spec.jitter, spec.jitter)]
        self.single = v2.Compose(steps) if spec.jitter else None  # draws image by image
        # grey fills what rotations and shifts uncover; at 10 timm posterizes to 0 bits, which Pillow refuses
        options = {"img_mean": 128 if channels == 1 else (128, 128, 128), "magnitude_max": 9.9}
        config = f"rand-n{spec.randaugment}-m{spec.magnitude}-mstd0.5-inc1"
        self.randaugment = rand_augment_transform(config, options) if spec.randaugment else None
        self.erasing = RandomErasing(spec.erasing, device="cpu") if spec.erasing else None
        mixing = {"prob": spec.mix_chance, "label_smoothing": 0.0, "num_classes": classes}
        self.mixup = Mixup(spec.mixup, spec.cutmix, **mixing) if spec.mixes else None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        device = images.device
        if self.single and len(images):
            images = torch.stack([self.single(image) for image in images])
        elif self.crop or self.flip:
            images = self._moved(images)
        if self.randaugment:
            drawn = (self.randaugment(functional.to_pil_image(image)) for image in images.cpu())
            pixels = torch.stack([functional.pil_to_tensor(image) for image in drawn])
            images = functional.to_dtype(pixels, torch.float32, scale=True).to(device)
        images = images.clone()  # erasing and mixing work in place
        if self.erasing:
            self.erasing.device = device
            images = self.erasing(images)
        if self.mixup:
            even = len(labels) // 2 * 2
            shares = nn.functional.one_hot(labels, self.mixup.num_classes).float()
            if even:
                images[:even], shares[:even] = self.mixup(images[:even], labels[:even])
            labels = shares
        return images.clamp(0, 1), labels

    def _moved(self, images: torch.Tensor) -> torch.Tensor:
        """Crop and flip all images at once, with the pixels of torchvision's RandomCrop and RandomHorizontalFlip.

        On a CPU the draws are theirs too, image by image.
        """
        n, channels, height, width = images.shape
        drawn = self._draws(n, images.device)
        rows = drawn[:, 0] + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(n, -1)
        columns = drawn[:, 1] + torch.where(drawn[:, 2] > 0, columns.flip(1), columns)
        padded = nn.functional.pad(images, [self.crop] * 4)
        padded = padded.gather(2, rows[:, None, :, None].expand(-1, channels, -1, padded.shape[3]))
        return padded.gather(3, columns[:, None, None].expand(-1, channels, height, -1))

    def _draws(self, count: int, device: torch.device) -> torch.Tensor:
        """Return each image's row and column in the padded image, and whether it is flipped: (count, 3, 1) int64.

        A GPU promises no bits: its draws are made at once and copied from pinned memory, which does not wait for the device.
        """
        if device.type != "cuda":
            drawn = [self._draw() for _ in range(count)]
            return torch.tensor(drawn, dtype=torch.long, device=device).reshape(-1, 3, 1)
        corners = torch.randint(2 * self.crop + 1, (count, 2))
        flips = (torch.rand(count, 1) < 0.5 if self.flip else torch.zeros(count, 1)).long()
        return torch.cat([corners, flips], 1)[..., None].pin_memory().to(device, non_blocking=True)

    def _draw(self) -> tuple[int, int, bool]:
        """Row and column of the padded image where one image begins, and whether it is flipped."""
        top, left = (int(torch.randint(2 * self.crop + 1, ())) if self.crop else 0 for _ in range(2))
        return top, left, bool(self.flip and torch.rand(1) < 0.5)
