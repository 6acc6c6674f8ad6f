"""Adversarial images that anybody contributes against a row, evaluated as an attack's are.

A safetensors file with one float32 tensor (n, c, h, w) for each ball, named after it ("Linf 0.15", "L2 0.5"): the track's n
evaluation images in their order, changed or not. Its metadata `credit` says who is to be named. Nothing in it is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from benchmark.attacks.ball import ROUNDING, distances, into_ball
from benchmark.evaluation.replay.evaluator import Evaluator
from benchmark.evaluation.replay.findings import Verification
from benchmark.evaluation.replay.verify import opened, other_row
from benchmark.records.contributed import LONGEST, UNNAMED, BrokenImage, Contribution
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.rows import Row, at_hand
from benchmark.specs.threat import ThreatModel

MOST = 32  # tensors in a file
HEADER = 2**20  # bytes of a file beside its tensors, at most
NUMBER = 4  # bytes of a float32


@contextmanager
def evaluator_of(record: Record, row: Row, device: torch.device) -> Iterator[Evaluator]:
    """Yield the evaluator of a Record's network, by the weights built here or else the published ones. Raise a BenchmarkError
    where its weights or data are not at hand, or the row in the working directory is not the Record's.
    """
    row = at_hand(row, record.sha256["weights"])
    if reason := other_row(record, row):
        raise BenchmarkError(f"{record.row}: {reason}; no images can be evaluated with it")
    with opened(record, row, device, Verification.begin(record, "published"), exact=False) as (stored, evaluator):
        if evaluator is None:
            lacking = [name for name, there in (("weights", stored.weights), ("data", stored.images)) if not there]
            raise BenchmarkError(
                f"{record.row}: the Record's own {' and '.join(lacking)} are not in {row.folder.parent}; "
                f"run `rvb repro {record.row} --track {record.track}`"
            )
        yield evaluator


def evaluate_file(path: Path, evaluator: Evaluator, record: Record, images: PerImage) -> tuple[dict[str, int], Contribution]:
    """Evaluate the images of a file with the float32 model, after they are put into ball and box.

    Returns:
        How many images are right when clean and wrong in each ball, and what of that lowers a number of the Record.

    Raises:
        BenchmarkError: a file that is not such a safetensors file, or an image that is outside its ball or the box.
    """
    with _opened(path, evaluator.images.shape) as stored:
        credit = (stored.metadata() or {}).get("credit", "").strip()
        threats = {name: _threat(name, record, path) for name in stored.keys()}  # noqa: SIM118  no mapping
        if not threats:
            raise BenchmarkError(f"{path} holds no tensor; give one for each ball, such as {_example(record)}")
        for name in threats:
            part, shape = stored.get_slice(name), tuple(evaluator.images.shape)
            dtype, given = part.get_dtype(), tuple(part.get_shape())
            if (dtype, given) != ("F32", shape):
                raise BenchmarkError(f"{path}: tensor {name!r} is {dtype} {given}; float32 {shape} is needed")
        clean, broken, new = evaluator.verdicts(evaluator.images).margin > 0, {}, []
        for name, threat in threats.items():
            adversarial = stored.get_tensor(name).to(evaluator.images.device)
            inside = into_ball(adversarial, evaluator.images, threat, f"{name!r} of {path.name}")
            moved, verdicts = distances(inside, evaluator.images), evaluator.verdicts(inside)
            wrong = np.flatnonzero(clean & (verdicts.margin <= 0)).tolist()
            broken[name] = len(wrong)
            for image in wrong:
                far = {norm: float(distance[image]) for norm, distance in moved.items()}
                balls = [r.threat for r in record.robust if far[r.threat.norm] <= r.threat.eps + ROUNDING]
                of_image = slice(image, image + 1)  # empty where a Record has fewer images
                lost = tuple(t.label for t in balls if (images.score(f"robust {t.label}") or [])[of_image] == [1])
                radii = [radius for radius in images.radii.get("certified", ())[of_image] if radius > 0]
                certified = max((radius for radius in radii if far["L2"] <= radius + ROUNDING), default=0.0)
                if lost or certified:
                    new.append(
                        BrokenImage(
                            image=image, threat=name, linf=far["Linf"], l2=far["L2"],
                            prediction=int(verdicts.prediction[image]), margin=float(verdicts.margin[image]),
                            lost=lost, certified=certified,
                        )
                    )  # fmt: skip
    try:
        contribution = Contribution(
            credit=credit or UNNAMED, sha256=files.sha256_file(path), weights=record.sha256["weights"], images=tuple(new)
        )
    except ValidationError:
        raise BenchmarkError(f"{path}: `credit` in its metadata has to be one line of at most {LONGEST} characters") from None
    return broken, contribution


def _opened(path: Path, shape: torch.Size) -> safe_open:
    """Open the file, if such images can have its size and it begins as safetensors do."""
    most = MOST * math.prod(shape) * NUMBER + HEADER
    if path.stat().st_size > most:
        raise BenchmarkError(
            f"{path} has {path.stat().st_size:,} bytes; {MOST} tensors of {tuple(shape)} float32 take at most {most:,}"
        )
    try:
        return safe_open(path, "pt")
    except (SafetensorError, OSError) as error:
        raise BenchmarkError(f"{path} is no safetensors file ({' '.join(str(error).split())})") from None


def _threat(name: str, record: Record, path: Path) -> ThreatModel:
    """Return the ball that a tensor is named after, of any radius, since certificates hold at every one."""
    if published := [robust.threat for robust in record.robust if robust.threat.label == name]:
        return published[0]  # a label rounds
    norm, _, eps = name.partition(" ")
    try:
        threat = ThreatModel.model_validate({"norm": norm, "eps": float(eps)})
    except ValueError:  # pydantic's too
        threat = None
    if threat is None or not math.isfinite(threat.eps) or threat.label != name:
        near = near_miss(name, {robust.threat.label for robust in record.robust})
        raise BenchmarkError(f"{path}: tensor {name[:60]!r} names no ball; name it such as {_example(record)}{near}")
    return threat


def _example(record: Record) -> str:
    return repr(record.robust[0].threat.label if record.robust else "L2 0.5")
