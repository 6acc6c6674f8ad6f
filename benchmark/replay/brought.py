"""Adversarial images that anybody brings against a row, judged as the harness judges an attack's.

A safetensors file: one float32 tensor (n, c, h, w) for each ball, named by it ("Linf 0.15", "L2 0.5"), with the track's n
evaluation images in their order, changed or not; and in its metadata `credit`, who is to be named. It is read as numbers and
runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from benchmark.loading.rows import Row
from benchmark.loading.trained import tensors
from benchmark.replay.findings import Findings
from benchmark.replay.judge import Judge
from benchmark.replay.stored import read
from benchmark.replay.verify import other_row
from benchmark.results.brought import LONGEST, UNNAMED, BrokenImage, Brought
from benchmark.results.per_image import PerImage
from benchmark.results.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.sandbox.model import evaluated_model
from benchmark.specs.base import Frozen
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import ROUNDING, distances, into_ball

MOST = 32  # tensors in a file
HEADER = 2**20  # bytes of a file beside its tensors, at most
NUMBER = 4  # bytes of a float32


class Judged(Frozen):
    """What a file of images does to a row.

    Attributes:
        broken: by the ball's name how many images are wrong in it that are right when clean.
        brought: what of that the Record does not know.
    """

    broken: dict[str, int]
    brought: Brought


@contextmanager
def judge_of(record: Record, row: Row, device: torch.device) -> Iterator[Judge]:
    """The network of a Record with its evaluation images, for as long as the block lasts.

    Raises:
        BenchmarkError: its weights or data are not at hand, or today's row is another than the Record speaks of.
    """
    findings = Findings(record.row)
    if reason := other_row(record, row):
        raise BenchmarkError(f"{record.row}: {reason}; nothing can be judged by it")
    # the row's process starts before labels are read, of which it would else have a copy
    with evaluated_model(row, device) if row.weights.exists() else nullcontext() as judged:
        stored = read(row, record, own=False, findings=findings)
        if not stored.weights or stored.images is None or judged is None:
            lacking = [name for name, there in (("weights", stored.weights), ("data", stored.images)) if not there]
            raise BenchmarkError(
                f"{record.row}: the Record's own {' and '.join(lacking)} are not in {row.folder.parent}; "
                f"run `rvb repro {record.row} --track {record.track}`"
            )
        images, labels = (one.to(device) for one in tensors(stored.images))
        torch.manual_seed(row.track.evaluation.seed)  # for what an open model draws
        judged.confirm(images, row.track.evaluation.batch_size, row.name)
        yield Judge(judged.model, images, labels, row.track.evaluation.batch_size, exact=False)


def judge_file(path: Path, judge: Judge, record: Record, images: PerImage) -> Judged:
    """Judges the images of a file: put into ball and box, the float32 model asked.

    Raises:
        BenchmarkError: the file is no safetensors file of such images, or an image is not within its ball and the box.
    """
    with _opened(path, judge.images.shape) as stored:
        credit = (stored.metadata() or {}).get("credit", "").strip()
        threats = {name: _threat(name, record, path) for name in stored.keys()}  # noqa: SIM118  no mapping
        if not threats:
            raise BenchmarkError(f"{path} holds no tensor; give one for each ball, such as {_example(record)}")
        for name in threats:
            _check_form(stored.get_slice(name), name, judge.images.shape, path)
        clean = judge.verdicts(judge.images).margin > 0
        broken, found = {}, []
        for name, threat in threats.items():
            adversarial = stored.get_tensor(name).to(judge.images.device)
            inside = into_ball(adversarial, judge.images, threat, f"{name!r} of {path.name}")
            moved, verdicts = distances(inside, judge.images), judge.verdicts(inside)
            wrong = [i for i, margin in enumerate(verdicts.margin.tolist()) if clean[i] and margin <= 0]
            broken[name] = len(wrong)
            for image in wrong:
                linf, l2 = float(moved["Linf"][image]), float(moved["L2"][image])
                found.append(
                    BrokenImage(
                        image=image, threat=name, linf=linf, l2=l2, prediction=int(verdicts.prediction[image]),
                        margin=float(verdicts.margin[image]), lost=_lost(image, linf, l2, record, images),
                        certified=_contradicted(image, l2, images),
                    )
                )  # fmt: skip
    new = tuple(one for one in found if one.lost or one.certified)
    return Judged(broken=broken, brought=_brought(credit, path, record, new))


def _brought(credit: str, path: Path, record: Record, new: tuple[BrokenImage, ...]) -> Brought:
    try:
        return Brought(
            credit=credit or UNNAMED, sha256=files.sha256_file(path), weights=record.sha256["weights"], images=new
        )
    except ValidationError:
        raise BenchmarkError(
            f"{path}: `credit` in its metadata has to be one line of at most {LONGEST} characters"
        ) from None


def _opened(path: Path, shape: torch.Size) -> safe_open:
    """The file, if its size is one that such images can have and it begins as safetensors do."""
    if not path.is_file():
        raise BenchmarkError(f"{path} is no file; give a safetensors file of adversarial images")
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
    """The ball that a tensor is named after; any radius, since certificates speak of every one."""
    if known := [robust.threat for robust in record.robust if robust.threat.label == name]:
        return known[0]  # a label rounds
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


def _check_form(stored: object, name: str, shape: torch.Size, path: Path) -> None:
    form = (stored.get_dtype(), tuple(stored.get_shape()))  # type: ignore[attr-defined]
    if form != ("F32", tuple(shape)):
        raise BenchmarkError(f"{path}: tensor {name!r} is {form[0]} {form[1]}; float32 {tuple(shape)} is needed")


def _lost(image: int, linf: float, l2: float, record: Record, images: PerImage) -> tuple[str, ...]:
    """The balls of the track in which the image lies and that the Record counts it in."""
    far = {"Linf": linf, "L2": l2}
    near = [one.threat for one in record.robust if far[one.threat.norm] <= one.threat.eps + ROUNDING]
    return tuple(
        threat.label for threat in near if (images.score(f"robust {threat.label}") or [])[image : image + 1] == [1]
    )


def _contradicted(image: int, l2: float, images: PerImage) -> float:
    radius = images.radii.get("certified", ())[image : image + 1]
    return radius[0] if radius and radius[0] > 0 and l2 <= radius[0] + ROUNDING else 0.0
