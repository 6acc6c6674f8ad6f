"""Everything that `rvb check` tries of a submission: its folder, then the model of each of its rows. Nothing is trained."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from benchmark.evaluation import division
from benchmark.evaluation.certified_radii import certified_radii
from benchmark.layers.derived import cache_weights
from benchmark.loading import fitting, methods, submissions
from benchmark.loading.rows import Row, load_row
from benchmark.reliability import interface, source
from benchmark.reliability.interface import Sample
from benchmark.results.check import Check, CheckReport, Note
from benchmark.runtime.errors import BenchmarkError, said
from benchmark.runtime.torch_setup import start
from benchmark.sandbox.process import plain
from benchmark.sandbox.submitted import Hear, run
from benchmark.specs.submission import Submission
from benchmark.verdicts.prediction import MIN_ROWS

SECONDS = 60.0  # no row is begun after this
ROW_SECONDS = 300.0  # that a row may take
KINDS: dict[str, type[Check] | type[Note]] = {"Check": Check, "Note": Note}
LICENSE = re.compile(r"\b[Ll]icense:\s*(?P<name>[A-Za-z0-9][\w.+-]*[\w+])")
OURS = "MIT"  # what CONTRIBUTING.md says a contribution is offered under
CERTIFIED = 2  # images
CPU = torch.device("cpu")
LONGEST = 300  # characters of a stranger's message


def check_submission(name: str, variant: str = "", seconds: float = SECONDS, device: torch.device = CPU) -> CheckReport:
    """Tries the submission, or its one `variant`, on each track that it enters.

    Args:
        seconds: rows that are not begun by then count as failed, with what to do.
        device: where the models are tried.

    Raises:
        BenchmarkError: there is no such folder, or the submission has no such variant.
    """
    until = time.monotonic() + seconds
    folder = submissions.FOLDER / name
    if not folder.is_dir():
        submissions.load(name)  # says which names are near
    try:
        loaded = submissions.load(name)
    except BenchmarkError as error:
        return CheckReport(submission=name, checks=(_failed("schema", error),), notes=())
    if variant and variant not in loaded.variants:
        submissions.settings(loaded, variant, "")  # the same of variants
    found: list[Check | Note] = [_checked("schema", f"{folder}/submission.yaml loads"), *_of_folder(loaded, folder)]
    for one in [variant] if variant else sorted(loaded.variants):
        for track in sorted(loaded.variants[one].tracks):
            at = {"row": f"{name}-{one}", "track": track}
            if time.monotonic() > until:
                words = f"not begun within {seconds:g} s; run `rvb check {name}-{one}`"
                found.append(Check(name="time", ok=False, found=words, **at))
                continue
            found += [finding.model_copy(update=at) for finding in _of_row(track, f"{name}-{one}", device)]
    return CheckReport(
        submission=name,
        checks=tuple(one for one in found if isinstance(one, Check)),
        notes=tuple(one for one in found if isinstance(one, Note)),
    )


def _of_folder(submission: Submission, folder: Path) -> Iterator[Check | Note]:
    """License, citation and files."""
    readme = folder / "README.md"
    text = readme.read_text(errors="replace") if readme.exists() else ""
    yield _required("README", bool(text.strip()), f"{readme}: what differs from the paper, and why")
    given = LICENSE.search(text)
    yield _required("license", bool(given), f"in {readme} a line such as `License: {OURS}`")
    if given and given["name"] != OURS:
        yield Note(name="license", found=f"{given['name']}, not this repository's {OURS}: may it be kept here?")
    paper = submission.paper
    if str(paper.year) in submission.name:
        cited = bool(paper.title.strip() and paper.authors.strip())
        yield _required("citation", cited, "title and authors under `paper` in submission.yaml")
    else:
        words = f"is {paper.year}, not the year of the folder's name; change one of them"
        yield _failed("citation", f"`paper.year` in submission.yaml {words}")
    if not paper.url:
        yield Note(name="citation", found="`paper` has no url: is it published?")
    tests = [path for path in folder.glob("test_*.py") if "\ndef test_" in path.read_text(errors="replace")]
    yield _required("tests", bool(tests), f"{folder}/test_method.py with the paper's identities on tiny inputs")
    try:
        for words in source.accesses(folder):
            yield Note(name="beside computing", found=words)
    except BenchmarkError as error:
        yield _failed("code", error)


def _of_row(track: str, name: str, device: torch.device) -> list[Check | Note]:
    """What `_tried` finds, in the sandbox."""
    findings = list[Check | Note]()

    def work(send: Hear) -> None:
        for finding in _tried(row, device):
            send({type(finding).__name__: finding.model_dump()})

    def hear(message: dict[str, Any]) -> None:
        kind, fields = next(iter(message.items()))
        finding = KINDS[kind].model_validate(fields)
        findings.append(finding.model_copy(update={"name": plain(finding.name), "found": plain(finding.found)}))

    try:
        row = load_row(track, name)
        names = [row.submission.name, *([row.source.submission.name] if row.source else [])]
        run(work, hear, *names, seconds=ROW_SECONDS, device=device.type)
    except BenchmarkError as error:
        findings.append(_failed("builds", error))
    except (ValidationError, KeyError):
        findings.append(_failed("builds", "its process returned malformed output"))
    return findings


def _tried(row: Row, device: torch.device) -> Iterator[Check | Note]:
    """The recipe, the model and what stages ask of it; a stranger's exception becomes a failure with its place."""
    try:
        start(device)
        model = _make(row, 0, device)
    except BenchmarkError as error:
        yield _failed("builds", error)
        return
    yield _checked("builds", f"by build(data, **{dict(row.settings.model)})")
    for name, part in (("model", _model), ("training", _training), ("certificate", _certificate), ("size", _look)):
        try:
            yield from part(row, model, device)
        except BenchmarkError as error:
            yield _failed(name, error)
        except Exception as error:  # whatever the method raises, its place and its words are what its author needs
            yield _failed(name, f"{methods.place(row.method, error)}: {said(error)[:LONGEST]}")


def _make(row: Row, seed: int, device: torch.device) -> nn.Module:
    torch.manual_seed(seed)
    return methods.build(row.submission, row.variant, row.track).to(device).eval()


def _model(row: Row, model: nn.Module, device: torch.device) -> Iterator[Check | Note]:
    sound = True
    for check in interface.checks(lambda seed: _make(row, seed, device), row.track, device):
        sound = sound and check.ok
        yield check
    if not sound:
        return  # the division's words would say the same again
    sample = Sample.of(row.track, device)
    try:
        facts = division.inspect(model, sample.images, sample.labels, row.submission)
    except BenchmarkError as error:
        yield _failed("division", error)
        return
    yield _checked("division", f"{facts.division}: {'; '.join(facts.division_reasons)}")
    if division.ONCE_WRONG not in facts.division_reasons:  # of a random model it cannot be told
        yield interface.by_itself(model, sample)
    yield interface.gradients(model, sample, row.track, row.submission.division == "open")


def _training(row: Row, model: nn.Module, device: torch.device) -> Iterator[Check | Note]:
    """One step's gradients by the recipe."""
    spec = row.settings.training
    if spec is None:
        if not callable(getattr(methods.method(row.submission.name), "pretrained", None)):
            raise BenchmarkError(
                f"{row.method} must define pretrained(data, path, **model), since a variant has `weights`"
            )
        yield Note(name="weights", found="trained elsewhere: where do they come from, and under which license?")
        return
    fitting.check_recipe(spec)
    attack = fitting.training_attack(spec.attack) if spec.attack else None
    objective, sample = fitting.training_objective(spec, attack), Sample.of(row.track, device)
    trained = _make(row, 0, device).train()
    loss = objective.loss(trained, sample.images, sample.labels, 1.0)
    if loss.requires_grad:
        loss.backward()
    learned = {name: p.grad for name, p in trained.named_parameters() if p.requires_grad}
    wrong = [name for name, grad in learned.items() if grad is not None and not torch.isfinite(grad).all()]
    if wrong or not torch.isfinite(loss):
        where = wrong[0] if wrong else "the loss"
        yield _failed("training", f"{where} is not finite in the first step; mend the scale of the model")
        return
    idle = [name for name, grad in learned.items() if grad is None or not grad.any()]
    if len(idle) == len(learned):
        yield _failed("training", "no parameter gets a gradient; mend what cuts them off")
        return
    yield _checked("training", f"a step of {spec.objective}: loss {float(loss.detach()):.3g}, gradients finite")
    if idle:
        yield Note(name="parameters without gradient", found=f"{len(idle)}, such as {idle[0]}: are they used?")


def _certificate(row: Row, model: nn.Module, device: torch.device) -> Iterator[Check | Note]:
    """Whether the certificate knows the model's layers."""
    spec, sample = row.settings.certificate, Sample.of(row.track, device)
    if spec is None:
        return
    certified = _make(row, 0, device).requires_grad_(False)
    cache_weights(certified)
    radii = certified_radii(certified, sample.images[:CERTIFIED], sample.labels[:CERTIFIED], spec, CERTIFIED)
    yield _checked("certificate", f"{spec.name} gives {len(radii)} images of the untrained model their radii")


def _look(row: Row, model: nn.Module, device: torch.device) -> Iterator[Check | Note]:
    """What a maintainer reads before running anything."""
    sample = Sample.of(row.track, device)
    count = sum(p.numel() for p in model.parameters())
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    yield Note(name="size", found=f"{count:,} parameters, {size / 2**20:.2f} MiB of weights")
    seconds = interface.seconds_an_image(model, sample)
    yield Note(
        name="time", found=f"{1000 * seconds:.2g} ms an image in batches of {2 * MIN_ROWS}, forward, on this machine"
    )
    prefix = f"submissions.{row.submission.name}."
    own = sorted({type(m).__name__ for m in model.modules() if type(m).__module__.startswith(prefix)})
    yield Note(name="modules of its own", found=", ".join(own) or "none")
    if left := interface.left_behind(model, sample):
        yield Note(name="a pass leaves traces", found=", ".join(left))


def _required(name: str, there: bool, what: str) -> Check:
    return Check(name=name, ok=there, found="present" if there else f"missing: write {what}")


def _checked(name: str, found: str) -> Check:
    return Check(name=name, ok=True, found=found)


def _failed(name: str, words: object) -> Check:
    return Check(name=name, ok=False, found=str(words))
