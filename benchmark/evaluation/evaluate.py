"""`benchmark.evaluate`: clean, attacked, certified and smoothed accuracy of any torch module, in one call."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import torch
from torch import nn

from benchmark.attacks import autoattack
from benchmark.attacks.ball import NO_FLOAT64, ROUNDING, distances
from benchmark.attacks.engine.fused_ops import HOOKS
from benchmark.attacks.gradients import FiniteGradients
from benchmark.attacks.prediction import logits as logits_of
from benchmark.attacks.prediction import predict
from benchmark.certificates.smoothing import ABSTAIN, guarantee, smooth
from benchmark.data.images import evaluation_index
from benchmark.data.prepare import read, split
from benchmark.evaluation import own_model
from benchmark.evaluation.auto_attack import calls, first_look, reporting
from benchmark.evaluation.certified_radii import certificate_module, certified_radii
from benchmark.evaluation.report import AttackReport, Certified, Report, Smoothed
from benchmark.evaluation.run_attack import Attack, AttackState
from benchmark.layers.derived import cache_weights
from benchmark.layers.description import describe, rebuild
from benchmark.runtime import files, paths
from benchmark.runtime.errors import BenchmarkError, near_miss, said
from benchmark.runtime.machine import environment
from benchmark.specs import tracks
from benchmark.specs.threat import AttackSpec, CertificateSpec, Engine
from benchmark.specs.track import SmoothingSpec, Track

DEFAULT = (("Linf", 8 / 255), ("L2", 0.5))  # the field's usual radii
CERTIFICATES = ("lipschitz", "local")  # in the order in which `certificate=True` tries them
SMOOTHING = {"n0": 100, "n": 4000, "looks": 6, "alpha": 0.001, "seed": 0}
BLOCK = 16  # images between two looks at the clock

Attacks = Sequence[tuple[str, SupportsFloat | str]]


def evaluate(
    model: nn.Module,
    images: torch.Tensor | str,
    labels: torch.Tensor | None = None,
    *,
    attacks: Attacks | None = None,
    certificate: bool | str = False,
    sigma: float | None = None,
    radii: Sequence[SupportsFloat | str] | None = None,
    count: int | None = None,
    minutes: float | None = None,
    folder: str | Path | None = None,
    logits: Callable[[Any], torch.Tensor] | None = None,
    engine: Engine = "fast",
    seed: SupportsIndex = 0,
    device: torch.device | str | None = None,
    batch_size: SupportsIndex = 128,
    progress: bool | None = None,
) -> Report:
    """Evaluate a model: clean accuracy, AutoAttack, and on request certified and smoothed accuracy, per image.

    Calls in several threads take turns, since they change settings of the process.

    Args:
        model: images (n, c, h, w) in [0, 1] to logits (n, classes); normalisation belongs inside. It is run in evaluation
            mode and in float32, and left as it was.
        images: (n, c, h, w) in [0, 1], with `labels` (n,) integers; or the name of a track, such as "digits" or "cifar10",
            with its images, radii and rules.
        attacks: norms and radii in pixels of [0, 1]. Default: [("Linf", "8/255"), ("L2", 0.5)], or the standard suite of the
            track. An empty list for none.
        certificate: prove l2 radii of a network that consists of this benchmark's layers: True, or "lipschitz" or "local" for
            one certificate alone.
        sigma: certify the smoothed version too, by Gaussian noise of this deviation in pixels.
        radii: l2 radii at which certified accuracy is counted; the track's, else 0.1, 0.25, 0.5 and those of `attacks`.
        count: evaluate the first `count` images only.
        minutes: the time limit of attacks and certificates. Images undecided by then count neither as robust nor as
            certified; the report counts them.
        folder: keeps partial work, from which a stopped call resumes; for deterministic models.
        logits: takes the logits from what the model returns, as `lambda output: output.logits` for Hugging Face.
        engine: AutoAttack's: "fast", or "reference" for the authors' files.
        seed: of everything random.
        device: where the model is; by default that of its parameters.
        batch_size: images in one call of the model; fewer where a GPU's memory holds no more.
        progress: whether to show on stderr what is running; by default where stderr is a terminal.

    Returns:
        The report: `print` it, or `report.save("report.html")`.

    Raises:
        BenchmarkError: bad input, with what to do; a model that `auto_attack` refuses; layers that no certificate supports;
            or a certified radius within which an attack broke the image.
    """
    clock = _Clock(minutes)
    track = _track(images) if isinstance(images, str) else None
    if track:
        if labels is not None:
            raise BenchmarkError("a track has labels of its own; leave out `labels`")
        images, labels = load_images(track.name)
    if not isinstance(images, torch.Tensor):
        raise BenchmarkError(f"images are a {type(images).__name__}; give a torch.Tensor (n, c, h, w), or a track's name")
    if labels is None:
        raise BenchmarkError("give images (n, c, h, w) and `labels` (n,), or the name of a track")
    if count is not None:
        first = own_model.whole("count", count, range(1, len(images) + 1), f"from 1 to {len(images)}")
        images, labels = images[:first], labels[:first]
    size = own_model.whole("batch_size", batch_size, range(1, sys.maxsize), "from 1 on")
    number = own_model.whole("seed", seed, range(2**32), "from 0 to 2**32 - 1")
    if logits is not None and not callable(logits):
        raise BenchmarkError(f"logits is a {type(logits).__name__}; give a function of the model's output")
    own = _Logits(model, logits) if logits and isinstance(model, nn.Module) else model
    place = own_model.device_of(own, images, device)
    own_model.check_engine(engine)
    suites = track.suites.values() if track else ()
    of_track = [(spec.norm, spec.eps) for suite in suites for spec in suite if spec.attack == "autoattack"]
    specs = _specs((of_track if track else DEFAULT) if attacks is None else attacks, number, images)
    rules = _smoothing(sigma, track)
    names = CERTIFICATES if certificate is True else (str(certificate),) if certificate else ()
    if names and names[0] not in CERTIFICATES:
        raise BenchmarkError(f"unknown certificate {names[0]!r}{near_miss(names[0], CERTIFICATES)}")
    of_attacks = (0.1, 0.25, 0.5, *(spec.eps for spec in specs if spec.norm == "L2" and spec.eps))
    if radii is None:
        radii = track.certified_radii if track else of_attacks
    if isinstance(radii, str) or not isinstance(radii, Iterable) or getattr(radii, "ndim", 1) == 0:
        raise BenchmarkError(f"radii must be a list of numbers, as [0.1, 0.5], not {radii!r}")
    shown = tuple(sorted({own_model.radius("L2", radius, images, "radii") for radius in radii}))
    try:
        stored = Path(folder) if folder else None
        if stored:
            stored.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=stored).close()
    except (OSError, TypeError) as error:
        raise BenchmarkError(f"folder {str(folder)!r} cannot be written to: {said(error)}; give another") from None
    attacked = slice((track.evaluation.attacked if track else None) or len(images))
    with (
        own_model.evaluating(model, place),
        reporting(progress) as say,
        tempfile.TemporaryDirectory(prefix="rvb-") as temporary,
    ):
        inputs, targets = own_model.inputs(images, labels, place)
        if not len(inputs):
            raise BenchmarkError("there is no image to evaluate on")
        fitted, clean, warnings = first_look(own, inputs, targets, size, say)
        network = _rebuilt(own, inputs, size) if names else None  # refused before the hours of the attacks
        kept = stored or Path(temporary)
        if stored:
            _check_same(kept, own, inputs, targets, {"engine": engine, "batch_size": size, "seed": number})
        run = _Run(fitted, size, engine, kept, clock, say)
        certified = _certified(run, network, inputs, targets, names) if network is not None else None
        reports = [_attacked(run, inputs[attacked], targets[attacked], spec) for spec in specs]
        smoothed = _smoothed(run, inputs, rules, shown) if rules else None
    report = Report(
        model=type(model).__name__,
        data=f"{track.title}, version {track.version}" if track else "the caller's images",
        labels=targets.cpu(),
        prediction=clean.prediction.cpu(),
        clean=clean.correct.cpu(),
        attacks=tuple(reports),
        radii=shown,
        certified=certified,
        smoothed=smoothed,
        warnings=tuple(dict.fromkeys([*warnings, *(words for attack in reports for words in attack.warnings)])),
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=round(clock.passed, 1),
        environment=environment() | {"device": str(place)},
    )
    _gate(report)
    return report


def load_images(track: str, count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a track's evaluation images, (n, c, h, w) float32 in [0, 1], and labels (n,); with `count` the first ones.
    Raise a BenchmarkError for an unknown track, and for files that are missing or not the track's.
    """
    rules = _track(track)
    spec = rules.data
    if spec.path and Path(spec.path).exists():
        spec = spec.model_copy(update={"path": str(Path(spec.path).absolute())})
    with contextlib.chdir(paths.home()):
        test = split(spec, read(spec))["test"]
    if spec.sha256.get("test", test.digest()) != test.digest():
        pinned = spec.sha256["test"]
        raise BenchmarkError(f"the test images of {track} have sha256 {test.digest()}, the track pins {pinned}")
    index = evaluation_index(len(test), rules.evaluation.images, rules.evaluation.seed)
    if count is not None:
        index = index[: own_model.whole("count", count, range(1, len(index) + 1), f"from 1 to {len(index)}")]
    chosen = test.take(index)
    return torch.from_numpy(chosen.floats()), torch.from_numpy(chosen.labels)


class _Logits(nn.Module):
    """The logits that `take` makes of what a model returns."""

    def __init__(self, model: nn.Module, take: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.take = model, take
        self.training = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.take(self.model(images))


class _Clock:
    def __init__(self, minutes: float | None) -> None:
        if minutes is not None and not (isinstance(minutes, int | float) and 0 < minutes < math.inf):
            raise BenchmarkError(f"minutes {minutes!r} is no limit; give a number above 0")
        self.begun, self.limit = time.monotonic(), math.inf if minutes is None else 60 * float(minutes)

    @property
    def passed(self) -> float:
        return time.monotonic() - self.begun

    @property
    def is_up(self) -> bool:
        return self.passed > self.limit

    def stop(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits; end the attack that asked for them when the time is up."""
        if self.is_up:
            raise own_model.TimeIsUp
        return logits


@dataclass(frozen=True)
class _Run:
    """Settings of an evaluation: `size` images are a batch, `folder` holds finished parts."""

    model: nn.Module
    size: int
    engine: Engine
    folder: Path
    clock: _Clock
    say: Callable[[str], None]


def _attacked(run: _Run, images: torch.Tensor, labels: torch.Tensor, spec: AttackSpec) -> AttackReport:
    """Run AutoAttack batch by batch until the time is up; images that finished parts broke by then count as broken."""
    model, size = run.model, run.size
    if not spec.eps:
        right = predict(model, images, labels, size).correct.cpu()
        whole, moved = torch.ones_like(right), torch.zeros(len(images))
        return AttackReport(spec.threat, run.engine, right, whole, images.cpu(), moved, {}, ())
    if run.clock.limit < math.inf and images.device.type == "cpu":
        size = min(size, BLOCK)  # so that little is lost when the time is up
    together, search = calls(model, images, size)
    timed = FiniteGradients(_Logits(model, run.clock.stop))
    attack = Attack(timed, spec, size, run.engine, run.say, autoattack, search, together)
    states, decided = [], []
    for first in range(0, len(images), size):
        rows = slice(first, min(first + size, len(images)))
        file = run.folder / f"{spec.norm}-{spec.eps!r}@{first}-{size}.safetensors"
        try:
            state = attack.on(images[rows], labels[rows], file, first)
            decided.append(torch.ones_like(state.robust))
        except own_model.TimeIsUp:
            if file.exists():
                state = AttackState.load(file, images.device)
            else:
                state = AttackState(images[rows].clone(), predict(model, images[rows], labels[rows], size).correct)
            decided.append(~state.robust)
        states.append(state)
    decided_all, remaining = torch.cat(decided), dict[str, int]()
    warnings = list(dict.fromkeys(words for state in states for words in state.warnings))
    if decided_all.all() and all(state.remaining for state in states):
        joined, _ = replace(attack, model=model).verdict(states, labels)
        remaining, warnings = joined.remaining, joined.warnings
    adversarial, robust = (torch.cat([getattr(state, name) for state in states]) for name in ("adversarial", "robust"))
    warnings += own_model.after_attack(timed, robust, predict(model, adversarial, labels, size).correct)
    if undecided := int((~decided_all).sum()):
        warnings.append(f"{spec.threat.label}: {undecided} of {len(images)} images were undecided when the time was up")
    moved = distances(adversarial, images)["L2"].cpu()
    robust, adversarial = (robust & decided_all).cpu(), adversarial.cpu()
    return AttackReport(spec.threat, run.engine, robust, decided_all.cpu(), adversarial, moved, remaining, tuple(warnings))


def _rebuilt(model: nn.Module, images: torch.Tensor, size: int) -> nn.Module:
    """Return the model rebuilt from a description of its layers, on a device that has float64. Raise a BenchmarkError for a
    layer that no certificate supports or that has hooks or methods of its own, and where an image gets other logits.
    """
    for name, layer in model.named_modules():
        replaced = [key for key, value in vars(layer).items() if callable(value) and hasattr(type(layer), key)]
        if replaced or any(vars(layer)[hooks] for hooks in HOOKS):
            raise BenchmarkError(f"no certificate for this model: {name or 'it'} has hooks or methods of its own")
    try:
        network = rebuild(*describe(model)).to(images.device)
    except BenchmarkError as error:
        raise BenchmarkError(f"no certificate for this model: {error}") from None
    cache_weights(network)
    if not torch.equal(logits_of(network, images, size), logits_of(model, images, size)):
        raise BenchmarkError("no certificate for this model: its layers do other than their types do, by their logits")
    return network.cpu() if images.device.type in NO_FLOAT64 else network


def _certified(run: _Run, network: nn.Module, images: torch.Tensor, labels: torch.Tensor, names: Sequence[str]) -> Certified:
    """Return the l2 radii of the first certificate that supports all layers; raise the error of the last one if none does."""
    place, block = next(network.parameters()).device, min(run.size, BLOCK)
    images, labels, problem = images.to(place), labels.to(place), ""
    for name in names:
        radii, done = torch.zeros(len(images), dtype=torch.float64), 0
        run.say(f"certifying {len(images)} images by {name}")
        try:
            for rows in torch.arange(len(images)).split(block):
                if run.clock.is_up and done:
                    break
                certified = certified_radii(network, images[rows], labels[rows], CertificateSpec(name=name), run.size)
                radii[rows], done = certified.cpu(), int(rows[-1]) + 1
        except BenchmarkError as error:
            problem = str(error)
            continue
        return Certified(radii, done, certificate_module(name).guarantee())
    raise BenchmarkError(f"no certificate for this model: {problem}")


def _smoothing(sigma: float | None, track: Track | None) -> SmoothingSpec | None:
    """Return the track's smoothing rules, or the default ones, with `sigma`."""
    if sigma is None:
        return None
    if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not 0 < sigma < math.inf:
        raise BenchmarkError(f"sigma {sigma!r} is no deviation; give a number above 0, in pixels of [0, 1]")
    rules = track.smoothing.model_dump() if track and track.smoothing else SMOOTHING
    return SmoothingSpec.model_validate(rules | {"sigma": float(sigma)})


def _smoothed(run: _Run, images: torch.Tensor, rules: SmoothingSpec, radii: Sequence[float]) -> Smoothed:
    """Return predictions and l2 radii of the smoothed version, for as many images as the time allows."""
    prediction, done = torch.full((len(images),), ABSTAIN), 0
    radius = torch.zeros(len(images), dtype=torch.float64)
    while done < len(images) and not run.clock.is_up:
        run.say(f"smoothing: image {done + 1} of {len(images)}")
        rows = slice(done, min(done + BLOCK, len(images)))
        places = range(rows.start, rows.stop)
        votes = smooth(run.model, images[rows], places, radii, **rules.model_dump(), batch_size=run.size)
        prediction[rows], radius[rows], done = votes.prediction, votes.radius, rows.stop
    return Smoothed(rules.sigma, prediction, radius, done, guarantee(rules.sigma, rules.alpha))


def _gate(report: Report) -> None:
    """Raise a BenchmarkError where an attack broke an image within its certified radius."""
    radii = report.certified.radii if report.certified else torch.zeros(len(report.labels))
    for attack in report.attacks:
        broken = report.clean[: len(attack.robust)] & ~attack.robust & attack.decided
        reached = radii[: len(attack.robust)] >= attack.moved + ROUNDING
        if (broken & reached).any():
            image = int((broken & reached).nonzero()[0])
            raise BenchmarkError(
                f"image {image} is certified at l2 {float(radii[image]):.4g}, but AutoAttack broke it within; "
                "the certificate or the attack is wrong: please report it"
            )


def _specs(attacks: Attacks, seed: SupportsIndex, images: torch.Tensor) -> list[AttackSpec]:
    """Return the specifications of attacks; raise a BenchmarkError for what is not an attack, and for one given twice."""
    specs: dict[str, AttackSpec] = {}
    for attack in attacks if isinstance(attacks, list | tuple) else [attacks]:
        if not isinstance(attack, list | tuple) or len(attack) != 2:
            raise BenchmarkError(f'{attack!r} is no attack; give pairs of a norm and a radius, as [("Linf", "8/255")]')
        spec = own_model.autoattack_spec(attack[0], attack[1], seed, images)
        if spec.threat.label in specs:
            raise BenchmarkError(f"the attack {spec.threat.label} stands twice; give it once")
        specs[spec.threat.label] = spec
    return list(specs.values())


def _track(name: str) -> Track:
    with contextlib.chdir(paths.home()):
        return tracks.load(name)


def _check_same(folder: Path, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, settings: dict[str, Any]) -> None:
    """Raise a BenchmarkError where the folder holds parts of another evaluation; else record which one it holds."""
    digest, first = hashlib.sha256(), images[: settings["batch_size"]]
    once, again = (logits_of(model, first, len(first)) for _ in range(2))
    asked = [once] if torch.equal(once, again) else []  # what no weight holds, such as a mean; a random model has none
    weights = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    for tensor in (images, labels, *weights, *asked):
        plain = tensor.detach().cpu().to_dense() if tensor.layout != torch.strided else tensor.detach().cpu()
        digest.update(str((plain.dtype, *plain.shape)).encode())
        digest.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    identity, path = {"sha256": digest.hexdigest(), "torch": torch.__version__, **settings}, folder / "evaluation.json"
    if path.exists() and files.read_json(path) != identity:
        raise BenchmarkError(f"{folder} holds parts of another evaluation; give another folder, or delete it")
    files.write_json(path, identity)
