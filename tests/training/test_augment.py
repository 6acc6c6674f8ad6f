"""Augmentations do what their names say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_training import blobs
from torchvision.transforms import v2

from benchmark.specs.training import Augmentation
from benchmark.training.augment import Augment


def test_augmentations_do_what_they_are_called() -> None:
    images, labels = blobs(0, 64, 3)

    def augmented(**changes) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        changed, mixed = Augment(Augmentation(**changes), (3, 6, 6), 4)(images, labels)
        assert (changed.shape, changed.dtype) == (images.shape, torch.float32)
        assert 0 <= changed.min() <= changed.max() <= 1
        return changed, mixed

    before = images.clone()
    assert torch.equal(augmented(flip=True)[1], labels)
    assert not torch.equal(augmented(randaugment=2)[0], images)
    erased, _ = augmented(erasing=1.0)
    assert torch.equal(erased[erased != images].unique(), torch.zeros(1))
    mixed, shares = augmented(mixup=1.0)
    assert torch.allclose(shares.sum(1), torch.ones(64))
    weight = shares.gather(1, labels[:, None]).view(-1, 1, 1, 1)  # in blobs no image is mixed with one of its class
    assert torch.allclose(mixed, weight * images + (1 - weight) * images.flip(0), atol=1e-5)
    cut, shares = augmented(cutmix=1.0)
    own = (cut == images).flatten(1).float().mean(1)
    assert torch.allclose(own, shares.gather(1, labels[:, None])[:, 0], atol=1e-5)
    assert torch.equal(Augment(Augmentation(mixup=1.0), (3, 6, 6), 4)(images[:5], labels[:5])[0][4], images[4]), "odd"
    np.random.seed(0)
    assert 30 <= sum(not torch.equal(augmented(mixup=1.0, mix_chance=0.3)[0], images) for _ in range(150)) <= 60
    assert torch.equal(images, before), "the data itself may not change"


CHANGES = [{"crop": 2}, {"flip": True}, {"crop": 1, "flip": True}, {"crop": 9, "flip": True}, {"jitter": 0.3}]
CHANGES += [{"crop": 2, "flip": True, "jitter": 0.2}]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 5, 8)], ids=str)
def test_crop_flip_and_jitter_are_torchvisions_to_the_last_bit_and_draw(changes, shape) -> None:
    images, labels = torch.rand(40, *shape, generator=torch.Generator().manual_seed(0)), torch.zeros(40).long()
    steps = [v2.RandomCrop(shape[1:], padding=changes["crop"])] if "crop" in changes else []
    steps += [v2.RandomHorizontalFlip()] if "flip" in changes else []
    steps += [v2.ColorJitter(*[changes["jitter"]] * 3)] if "jitter" in changes else []
    torch.manual_seed(3)
    expected = torch.stack([v2.Compose(steps)(image) for image in images]).clamp(0, 1)
    after = torch.rand(1)
    torch.manual_seed(3)
    changed, _ = Augment(Augmentation(**changes), shape, 4)(images, labels)
    assert torch.equal(changed, expected)
    assert changed.is_contiguous()
    assert torch.equal(torch.rand(1), after), "the next draw is the same too"
    assert len(Augment(Augmentation(**changes), shape, 4)(images[:0], labels[:0])[0]) == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_the_strongest_augmentations_run_on_grey_and_colour(channels) -> None:
    strong = Augmentation(randaugment=8, magnitude=10, crop=5, erasing=1.0, mixup=0.01, cutmix=100)
    images, labels = blobs(0, 120, channels)
    changed, _ = Augment(strong, (channels, 6, 6), 4)(images, labels)
    assert changed.shape == images.shape
    assert 0 <= changed.min() <= changed.max() <= 1
