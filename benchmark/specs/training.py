"""Recipes: how a variant is trained, or which weights it has.

Units: radii in pixels of [0, 1]; learning rates per optimiser step.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field, field_validator, model_validator

from benchmark.specs.base import Frozen, repeated
from benchmark.specs.threat import AttackSpec, CertificateName, ThreatModel


class Augmentation(Frozen):
    """The augmentation of each training image, in this order; 0 and false leave a part out. Results stay in [0, 1]."""

    crop: int = Field(default=0, ge=0)  # random crop after padding by this many black pixels
    flip: bool = False  # left to right, half of the time
    jitter: float = Field(default=0.0, ge=0, le=1)  # of brightness, contrast and saturation; colour images
    randaugment: int = Field(default=0, ge=0)  # operations an image, each applied half of the time (Cubuk et al. 2020)
    magnitude: int = Field(default=9, ge=0, le=10)  # of randaugment's operations
    erasing: float = Field(default=0.0, ge=0, le=1)  # chance of a black rectangle (Zhong et al. 2020)
    mixup: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # alpha (Zhang et al. 2018)
    cutmix: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # alpha (Yun et al. 2019); with mixup, half the time
    mix_chance: float = Field(default=1.0, gt=0, le=1, exclude_if=lambda chance: chance == 1)  # that a batch is mixed

    @property
    def any(self) -> bool:
        return any((self.crop, self.flip, self.jitter, self.randaugment, self.erasing, self.mixes))

    @property
    def mixes(self) -> bool:
        return any((self.mixup, self.cutmix))


class Closing(Frozen):
    """Another augmentation for the last epochs.

    They are counted from `epochs`: a run that `patience` ends earlier has none.
    """

    epochs: int = Field(ge=0)  # how many; 0 is without
    augmentation: Augmentation = Augmentation()  # none unless given


class Selection(Frozen):
    """The epoch whose weights are kept: the first with the best score on the validation images, never the test images.

    The score is `by` the objective's own score, `clean` accuracy, `robust` accuracy under `attack`, or accuracy that
    `certificate` proves at an l2 `radius`. Training stops after `patience` epochs without a better score, counted from the
    end of the radius's warm-up; 0 never stops it.
    """

    by: Literal["objective", "clean", "robust", "certified"] = "objective"
    attack: AttackSpec | None = None
    certificate: CertificateName | None = None
    radius: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # l2, in pixels
    patience: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _attacked(self) -> Selection:
        if self.by == "robust" and self.attack is None:
            raise ValueError("selection by robust accuracy needs an `attack`, such as pgd with 10 steps")
        if self.by != "robust" and self.attack is not None:
            raise ValueError(f"selection by {self.by} has no use for an `attack`; leave it out or select by robust")
        given = (self.certificate is not None, self.radius > 0)
        if self.by == "certified" and not all(given):
            raise ValueError("selection by certified accuracy needs a `certificate`, such as lipschitz, and a `radius`")
        if self.by != "certified" and any(given):
            raise ValueError(f"selection by {self.by} has no use for a certificate; leave it out or select by certified")
        return self


class InitSpec(Frozen):
    """Fine-tuning: the weights from which training starts.

    They are those of another row, of this track unless `track` names one, or, in a study, of another `cell` with the
    same seed. `new` names the parts that start afresh, such as a head for other classes, by the first parts of their
    parameters' names. All others must fit, by name and shape.
    """

    row: str = Field(default="", pattern=r"^([^-]+-[^-]+)?$")  # <submission>-<variant>
    cell: str = ""
    track: str | None = None
    new: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_source(self) -> InitSpec:
        if bool(self.row) == bool(self.cell) or (self.cell and self.track):
            raise ValueError("training starts from a `row`, <submission>-<variant>, or in a study from a `cell`: name one")
        return self


class PenaltySpec(Frozen):
    """A term added to the loss of any objective.

    `name` is a file of `benchmark/training/penalties/`, or of the submission's folder.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)
    parameters: dict[str, int | float | bool | str] = Field(default={})  # the file's own


class PrepareSpec(PenaltySpec):
    """A step that changes the starting weights before the epochs. `name` is a file of the submission's folder."""


class TrainingSpec(Frozen):
    """How a variant is trained. `objective` is a file of `benchmark/training/`, or of the submission's folder."""

    objective: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)
    parameters: dict[str, float] = Field(default={})  # the objective's own
    penalties: tuple[PenaltySpec, ...] = ()  # added to its loss; a study's axis: training.penalties.<name>.<key>
    init_from: InitSpec | None = None  # fine-tuning
    prepare: tuple[PrepareSpec, ...] = ()  # of the weights that it starts from, in this order, before the epochs
    keep_zeros: bool = False  # matrix and kernel entries that are 0 before the first epoch stay 0
    attack: AttackSpec | None = None  # the attack trained against
    # the attack's or the objective's radius grows linearly over these, from 0
    warmup_epochs: int = Field(default=0, ge=0)
    epochs: int = Field(ge=0)  # at most; selection may stop earlier; 0 is for preparations alone
    batch_size: int = Field(gt=0)
    # batches whose gradients make one step, as of one batch of all their images
    accumulation: int = Field(default=1, gt=0)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    sam: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # rho of sharpness-aware minimisation; 0 is without
    learning_rate: float = Field(gt=0, allow_inf_nan=False)
    schedule: Literal["one_cycle", "cosine", "constant"] = "one_cycle"  # of the learning rate
    rate_warmup_epochs: int = Field(default=0, ge=0)  # linear rise before cosine and constant; one_cycle has its own
    final_rate: float = Field(default=0.0, ge=0, le=1)  # share of the learning rate at which a cosine ends
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    weight_decay_on: Literal["all", "weights"] = "all"  # `weights`: neither biases nor norms
    clip_norm: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # l2 norm of the whole gradient; 0 is without
    ema: float = Field(default=0.0, ge=0, lt=1)  # decay a step of the averaged weights that are kept; 0 is without
    augmentation: Augmentation = Augmentation()
    closing: Closing | None = Field(default=None, exclude_if=lambda closing: closing is None)
    selection: Selection = Selection()

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSpec:
        if not self.epochs and not self.prepare:
            raise ValueError("epochs 0 trains nothing; give some, or a `prepare` step for the weights of another row")
        if self.warmup_epochs >= max(self.epochs, 1):
            raise ValueError(
                f"warmup_epochs {self.warmup_epochs} leaves none of {self.epochs} epochs at the full radius; give fewer"
            )
        if self.schedule == "one_cycle" and (self.rate_warmup_epochs or self.final_rate):
            raise ValueError("one_cycle has its own rise and ends at 0; use schedule cosine, or constant with a rise")
        if self.schedule == "constant" and self.final_rate:
            raise ValueError("final_rate is where a cosine ends; the schedule is constant")
        if self.rate_warmup_epochs >= max(self.epochs, 1):
            raise ValueError(f"rate_warmup_epochs {self.rate_warmup_epochs} should be below epochs {self.epochs}")
        if self.closing and self.closing.epochs >= max(self.epochs, 1):
            raise ValueError(f"closing.epochs {self.closing.epochs} should be below epochs {self.epochs}")
        if self.closing and self.closing.augmentation.mixes and not self.augmentation.mixes:
            raise ValueError("mixup and cutmix may end before the last epochs, not begin there; leave them out of closing")
        return self

    @model_validator(mode="after")
    def _each_once(self) -> TrainingSpec:
        for what, items in (("penalty", self.penalties), ("preparation", self.prepare)):
            if twice := repeated(item.name for item in items):
                raise ValueError(f"the {what} {twice} is given twice; give it once, with all its parameters")
        return self

    @property
    def attacks(self) -> tuple[AttackSpec, ...]:
        """The attacks that training runs: the one trained against, and the one selected by."""
        return tuple(attack for attack in (self.attack, self.selection.attack) if attack)


def recipe_problem(spec: TrainingSpec, shape: tuple[int, int, int]) -> str | None:
    """Return what is wrong with a recipe for images of this shape (c, h, w); None if it fits."""
    problems = [radius_problem(attack, shape) for attack in spec.attacks]
    problems += [_augmentation_problem(spec.augmentation, shape)]
    if spec.closing and (problem := _augmentation_problem(spec.closing.augmentation, shape)):
        problems.append(f"closing.{problem}")
    return next(filter(None, problems), None)


def _augmentation_problem(augmentation: Augmentation, shape: tuple[int, int, int]) -> str | None:
    channels, *sides = shape
    size = "x".join(map(str, shape))
    if augmentation.jitter and channels != 3:
        return f"augmentation.jitter is for colour images, these are {size}; leave it out"
    if augmentation.randaugment and channels not in (1, 3):
        return f"augmentation.randaugment is for images of 1 or 3 channels, these are {size}; leave it out"
    if augmentation.crop >= min(sides):
        return f"augmentation.crop {augmentation.crop} could push an image of {size} out of sight; use less"
    return None


def radius_problem(threat: ThreatModel, shape: tuple[int, int, int]) -> str | None:
    """Return what is wrong with an l2 radius above sqrt(c h w), the diameter of all images of this shape; else None."""
    diameter = math.sqrt(math.prod(shape))
    if threat.norm == "L2" and threat.eps > diameter:
        size = "x".join(map(str, shape))
        return f"L2 eps {threat.eps:g} is above {diameter:.4g}, the diameter of {size} images; radii are in pixels in [0, 1]"
    return None


class WeightsSpec(Frozen):
    """Weights that were trained elsewhere: a checkpoint file, or, without `path`, those of the method's own loader.

    `path` is relative to the repository's root: in `weights/`, where users put files for submissions, or in the
    submission's own folder. `sha256` pins the file.
    """

    path: str | None = Field(default=None, min_length=1)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @field_validator("path")
    @classmethod
    def _a_place_for_weights(cls, path: str | None) -> str | None:
        """Refuse other places: submitted code reads the file, and it could be the test images, another row's verdicts
        or a secret.
        """
        parts = PurePosixPath(path or "weights/none").parts
        if parts[0] not in ("weights", "submissions") or len(parts) < 2 or ".." in parts:
            raise ValueError(
                f"{str(path)[:60]!r} lies neither in weights/ nor in the submission's own folder; put the file, or a link to "
                "it, into weights/"
            )
        return path

    @model_validator(mode="after")
    def _pins_a_file(self) -> WeightsSpec:
        if self.sha256 and not self.path:
            raise ValueError("sha256 pins a file; give its `path` too")
        return self
