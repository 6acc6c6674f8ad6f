"""The checks of `rvb check`: a submission's folder, then each row's untrained model on a few random images."""

from __future__ import annotations

import ast
import re
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from benchmark.attacks.prediction import MIN_ROWS, logits
from benchmark.evaluation import division
from benchmark.evaluation.asking import answers, depends_on_asking
from benchmark.evaluation.certified_radii import certified_radii
from benchmark.evaluation.indicators import SAME
from benchmark.evaluation.probes import first_threat, probes
from benchmark.layers.derived import cache_weights
from benchmark.records.check import Check, CheckReport, Note
from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError, said
from benchmark.runtime.torch_setup import start
from benchmark.sandbox.process import plain
from benchmark.sandbox.submitted import Hear, in_force, run
from benchmark.specs import methods, submissions
from benchmark.specs.rows import Row, load_row
from benchmark.specs.submission import Submission
from benchmark.specs.threat import ThreatModel
from benchmark.specs.track import Track
from benchmark.training import fitting

ROW_SECONDS = 300.0  # that a row may take
LICENSE = re.compile(r"\b[Ll]icense:\s*(?P<name>[A-Za-z0-9][\w.+-]*[\w+])")
OURS = "MIT"  # what CONTRIBUTING.md says a contribution is offered under
CERTIFIED = 2  # images
IMAGES = 2 * MIN_ROWS
CPU = torch.device("cpu")
LONGEST = 300  # characters of a message of submitted code
# names in a submission's code that do something beside computing
NETWORK = ("aiohttp", "ftplib", "gdown", "http", "httpx", "huggingface_hub", "requests", "socket", "urllib", "wget")
PROCESSES = ("ctypes", "multiprocessing", "subprocess", "threading")
KINDS = dict.fromkeys(NETWORK, "network") | dict.fromkeys(PROCESSES, "process")
DOWNLOADS = ("torch.hub", "load_state_dict_from_url", "download_url_to_file", "snapshot_download", "hf_hub_download")
FILES = (
    "torch.load", "torch.save", "np.load", "np.save", "numpy.load", "numpy.save", "os.environ", "os.system", "os.remove",
)  # fmt: skip
METHODS = ("read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir", "rmtree")
CALLS = ("open", "exec", "eval", "compile", "__import__", "input")
GLOBAL = (
    "torch.manual_seed", "torch.set_rng_state", "torch.set_num_threads", "torch.set_default_dtype",
    "torch.use_deterministic_algorithms", "random.seed", "np.random.seed", "numpy.random.seed",
)  # fmt: skip


def check_submission(
    name: str, variant: str = "", device: torch.device = CPU, report: Callable[[str], None] = lambda line: None,
    look: Callable[..., None] = lambda given, row: None,
) -> CheckReport:  # fmt: skip
    """Check the submission, or its one `variant`, on each track that it enters.

    Args:
        device: where the models run.
        report: is told of each row before it is checked.
        look: raises a BenchmarkError for a file of weights that the step `pretrained` would refuse.

    Raises:
        BenchmarkError: there is no such folder, or the submission has no such variant.
    """
    folder = submissions.FOLDER / name
    if not folder.is_dir():
        submissions.load(name)  # raises, with the nearest names
    try:
        submission = submissions.load(name)
    except BenchmarkError as error:
        return CheckReport(submission=name, checks=(failed("schema", error),), notes=())
    if variant and variant not in submission.variants:
        submissions.settings(submission, variant, "")  # raises, with the nearest variants
    findings: list[Check | Note] = [passed("schema", f"{folder}/submission.yaml loads")]
    findings += _check_folder(submission, folder)
    for each in [variant] if variant else sorted(submission.variants):
        for track in sorted(submission.variants[each].tracks):
            row = f"{name}-{each}"
            report(f"checking {row} on {track}")
            of_row = _check_row(track, row, device, look)
            findings += [finding.model_copy(update={"row": row, "track": track}) for finding in of_row]
    return CheckReport(
        submission=name,
        checks=tuple(finding for finding in findings if isinstance(finding, Check)),
        notes=tuple(finding for finding in findings if isinstance(finding, Note)),
    )


def passed(name: str, found: str) -> Check:
    return Check(name=name, ok=True, found=found)


def failed(name: str, problem: object) -> Check:
    return Check(name=name, ok=False, found=str(problem))


def verdict(name: str, problem: str, otherwise: str) -> Check:
    """Return a check that failed by `problem`, or passed where that is empty."""
    return failed(name, problem) if problem else passed(name, otherwise)


def _check_folder(submission: Submission, folder: Path) -> Iterator[Check | Note]:
    """Check license, citation and files."""
    readme, paper = folder / "README.md", submission.paper
    text = readme.read_text(errors="replace") if readme.exists() else ""
    license_ = LICENSE.search(text)
    tests = [path for path in folder.glob("test_*.py") if "\ndef test_" in path.read_text(errors="replace")]
    cited = paper.title.strip() and paper.authors.strip()
    for name, present, what in (
        ("README", text.strip(), f"{readme}: what differs from the paper, and why"),
        ("license", license_, f"in {readme} a line such as `License: {OURS}`"),
        ("citation", cited, "title and authors under `paper` in submission.yaml"),
        ("tests", tests, f"{folder}/test_method.py with the paper's identities on tiny inputs"),
    ):
        problem = "" if present else f"missing: write {what}"
        if name == "citation" and str(paper.year) not in submission.name:
            words = f"is {paper.year}, not the year of the folder's name; change one of them"
            problem = f"`paper.year` in submission.yaml {words}"
        yield verdict(name, problem, "present")
    if license_ and license_["name"] != OURS:
        yield Note(name="license", found=f"{license_['name']}, not this repository's {OURS}: may it be kept here?")
    if not paper.url:
        yield Note(name="citation", found="`paper` has no url: is it published?")
    try:
        for words in accesses(folder):
            yield Note(name="beside computing", found=words)
    except BenchmarkError as error:
        yield failed("code", error)


def _check_row(track: str, name: str, device: torch.device, look: Callable[..., None]) -> list[Check | Note]:
    """Return the findings of `_check_model`, which runs in the sandbox."""
    findings = list[Check | Note]()

    def work(send: Hear) -> None:
        for finding in _check_model(row, device):
            send(finding.model_dump())

    def hear(message: dict[str, Any]) -> None:
        finding = (Check if "ok" in message else Note).model_validate(message)
        findings.append(finding.model_copy(update={"name": plain(finding.name), "found": plain(finding.found)}))

    in_force()  # what params.yaml asks for and this machine lacks is no fault of the row
    try:
        row = load_row(track, name)
        names = [row.submission.name, *([row.source.submission.name] if row.source else [])]
        if (given := row.settings.weights) and given.path:
            try:
                look(given, row)
                row = replace(row, given=Path(given.path))
            except BenchmarkError as error:
                findings.append(failed("weights", error))
        run(work, hear, *names, seconds=ROW_SECONDS, device=device.type, read=[row.given] if row.given else [])
    except BenchmarkError as error:
        findings.append(failed("builds", error))
    except ValidationError:
        findings.append(failed("builds", "its process returned malformed output"))
    return findings


def _check_model(row: Row, device: torch.device) -> Iterator[Check | Note]:
    """Check the model and what the steps ask of it. An exception of submitted code is a failed check that names its line."""
    try:
        start(device)
        model = _build(row, 0, device)
    except BenchmarkError as error:
        yield failed("builds", error)
        return
    yield passed("builds", f"by build(data, **{dict(row.settings.model)})")
    images, labels = sample(row.track, device)
    second = "training" if row.settings.training else "weights"
    parts = {"model": _behaviour, second: _training, "certificate": _certificate, "size": _look}
    for name, part in parts.items():
        try:
            yield from part(row, model, images, labels)
        except BenchmarkError as error:
            yield failed(name, error)
        except Exception as error:  # any that the method raises
            yield failed(name, f"{methods.place(row.method, error)}: {said(error)[:LONGEST]}")


def _build(row: Row, seed: int, device: torch.device) -> nn.Module:
    torch.manual_seed(seed)
    return methods.build(row.submission, row.variant, row.track).to(device).eval()


def sample(track: Track, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images (n, c, h, w), uniform in [0, 1], and labels (n,); the same at every call."""
    images = torch.rand((IMAGES, *track.data.shape), generator=torch.Generator().manual_seed(0))
    return images.to(device), (torch.arange(IMAGES) % track.data.classes).to(device)


def _behaviour(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Check | Note]:
    sound = True
    for check in _basics(row, model, images):
        sound = sound and check.ok
        yield check
    if not sound:
        return  # the division's reasons would repeat it
    try:
        facts = division.inspect(model, images, labels, row.submission)
    except BenchmarkError as error:
        yield failed("division", error)
        return
    yield passed("division", f"{facts.division}: {'; '.join(facts.division_reasons)}")
    if division.ONCE_WRONG not in facts.division_reasons:  # a random model's answers differ in any case
        asked = depends_on_asking(answers(model, images, IMAGES, 0), "the model", is_open=True)
        advice = "" if asked.sound else "; no statistic may be taken over the batch"
        yield Check(name="each image by itself", ok=asked.sound, found=f"{asked.measured}{advice}")
    yield _gradients(model, images, labels, row.track, row.submission.division == "open")


def _basics(row: Row, model: nn.Module, images: torch.Tensor) -> Iterator[Check]:
    """Check output, seeds, weights, inputs and noise. No other check means anything without a good output."""
    shape, before = (IMAGES, row.track.data.classes), {key: t.clone() for key, t in model.state_dict().items()}
    with torch.no_grad():
        output = model(images.clone())
    model.load_state_dict(before)  # of a model that changes itself, which the division judges
    problem = ""
    if tuple(output.shape) != shape:
        problem = f"{IMAGES} images give shape {tuple(output.shape)}; return logits of {shape}"
    elif output.dtype != torch.float32:
        problem = f"logits are {output.dtype}; return float32, in which every verdict is judged"
    yield verdict("output", problem, f"{IMAGES} images give logits of shape {shape}, float32")
    if problem:
        return
    again, other = _build(row, 0, images.device), _build(row, 1, images.device)
    yield _same_seed(model, again, images)

    other.load_state_dict(model.state_dict())
    usual = _logits(model, images)
    gap = _gap(usual, _logits(other, images))
    problem = f"a model with the same weights says otherwise by {gap:.3g}; what it draws must be a persistent buffer"
    problem = problem if gap > SAME * (1 + float(usual.abs().max())) else ""
    yield verdict("weights are the model", problem, "put into another build, they give the same logits")

    given = images.clone()
    with torch.no_grad():
        model(given)
    changes = f"a pass changes its images by up to {_gap(given, images):.3g}; work on a copy (`x = x - m`)"
    problem = "" if torch.equal(given, images) else changes
    yield verdict("input is left alone", problem, "the batch is the same after a pass")

    if row.track.smoothing:
        sigma = row.track.smoothing.sigma
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).to(images.device)
        with torch.no_grad():
            finite = bool(torch.isfinite(model(images + sigma * noise)).all())
        advice = "begin with x = x.clamp(0, 1)"
        problem = "" if finite else f"logits are not finite for pixels outside [0, 1], which smoothing asks; {advice}"
        yield verdict("noise", problem, f"finite logits under noise of deviation {sigma:g}, as smoothing asks")


def _same_seed(model: nn.Module, again: nn.Module, images: torch.Tensor) -> Check:
    """Compare two models built under one seed."""
    weights, others = model.state_dict(), again.state_dict()
    equal = {key for key in weights.keys() & others.keys() if torch.equal(weights[key], others[key])}
    problem = ""
    if differing := sorted((weights.keys() | others.keys()) - equal):
        advice = "draw initial weights from torch's generator alone"
        problem = f"{differing[0]} differs between two builds of one seed; {advice}"
    elif gap := _gap(_logits(model, images), _logits(again, images)):
        advice = "something outside the weights is drawn anew at each build; make it a buffer or draw it from torch"
        problem = f"equal weights, but logits {gap:.3g} apart; {advice}"
    return verdict("same seed, same weights", problem, f"{len(weights)} tensors and all logits are equal in two builds")


def _gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, track: Track, is_open: bool) -> Check:
    """Check that margin and cross-entropy have a finite gradient by each image that is not zero; open models need none."""
    probed = probes(model, first_threat(track.threats) or ThreatModel(norm="L2", eps=0.5), track.data.shape, 0)
    unusable = 0
    for name in ("gradient", "loss gradient"):
        torch.manual_seed(0)
        norms = probed[name](images.clone(), labels)[name]
        unusable = max(unusable, int((~torch.isfinite(norms) | (norms == 0)).sum()))
    if not unusable:
        return passed("gradients", "finite and not zero on all images")
    advice = "the division is open" if is_open else "mend what cuts them off, or declare `division: open`"
    words = f"none, zero or not finite on {unusable} of {IMAGES} images; {advice}"
    return Check(name="gradients", ok=is_open, found=words)


def _training(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Check | Note]:
    """Check the gradients of one training step, or that the method loads the given weights."""
    spec = row.settings.training
    if spec is None:
        if not callable(getattr(methods.method(row.submission.name), "pretrained", None)):
            raise BenchmarkError(f"{row.method} must define pretrained(data, path, **model) for its `weights`")
        if row.given:  # as the step `pretrained` does
            given = methods.pretrained(row.submission, row.variant, row.track, row.given)
            methods.check_weights(given, row.submission, row.settings, row.track)
            yield passed("weights", f"{row.given} loads, and fits the model that `build` returns")
        yield Note(name="weights", found="trained elsewhere: where do they come from, and under which license?")
        return
    fitting.check_recipe(spec, row.submission.name)
    attack = fitting.training_attack(spec.attack) if spec.attack else None
    trained = _build(row, 0, images.device).train()
    objective = fitting.training_objective(spec, attack, row.submission.name)
    state = objective.attach(trained, images[: objective.looks_at])
    if state is not None:
        state.to(images.device)
    penalties = fitting.training_penalties(spec, row.submission.name, trained)
    for penalty in penalties.values():
        penalty.to(images.device).advance()
    objective.advance()
    loss = objective.loss(trained, images, labels, 1.0)
    for penalty in penalties.values():
        loss = loss + penalty()
    if loss.requires_grad:
        loss.backward()
    gradients = {name: p.grad for name, p in trained.named_parameters() if p.requires_grad}
    wrong = [name for name, grad in gradients.items() if grad is not None and not torch.isfinite(grad).all()]
    idle = [name for name, grad in gradients.items() if grad is None or not grad.any()]
    problem = ""
    if wrong or not torch.isfinite(loss):
        where = wrong[0] if wrong else "the loss"
        problem = f"{where} is not finite in the first step; mend the scale of the model"
    elif len(idle) == len(gradients):
        problem = "no parameter gets a gradient; mend what cuts them off"
    else:
        try:
            methods.check_weights(trained, row.submission, row.settings, row.track)
        except BenchmarkError as error:
            problem = str(error)
    yield verdict("training", problem, f"a step of {spec.objective}: loss {float(loss.detach()):.3g}, gradients finite")
    if idle and not problem:
        yield Note(name="parameters without gradient", found=f"{len(idle)}, such as {idle[0]}: are they used?")


def _certificate(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Check | Note]:
    """Check that the certificate knows the model's layers."""
    if spec := row.settings.certificate:
        certified = _build(row, 0, images.device).requires_grad_(False)
        cache_weights(certified)
        radii = certified_radii(certified, images[:CERTIFIED], labels[:CERTIFIED], spec, CERTIFIED)
        yield passed("certificate", f"{spec.name} gives {len(radii)} images of the untrained model their radii")


def _look(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Note]:
    """Note what a maintainer reads before running anything."""
    count = sum(p.numel() for p in model.parameters())
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    yield Note(name="size", found=f"{count:,} parameters, {size / 2**20:.2f} MiB of weights")
    seconds = min(timeit.repeat(lambda: logits(model, images, IMAGES), number=1, repeat=2)) / IMAGES
    yield Note(name="time", found=f"{1000 * seconds:.2g} ms an image in batches of {IMAGES}, forward, on this machine")
    prefix = f"submissions.{row.submission.name}."
    own = sorted({type(m).__name__ for m in model.modules() if type(m).__module__.startswith(prefix)})
    yield Note(name="modules of its own", found=", ".join(own) or "none")
    if traces := _traces(model, images):
        yield Note(name="a pass leaves traces", found=", ".join(traces))


@torch.no_grad()
def _traces(model: nn.Module, images: torch.Tensor) -> list[str]:
    """Return what a pass in evaluation mode changes in the model's attributes and torch's generator, in words."""
    before, state = _attributes(model), torch.get_rng_state()
    model(images.clone())
    after = _attributes(model)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    generator = [] if torch.equal(state, torch.get_rng_state()) else ["torch's generator"]
    return [f"attribute {key}" for key in changed] + generator


def _attributes(model: nn.Module) -> dict[str, object]:
    """Return the attributes by name: plain values, else identity and size; of tensors how often they were written to."""
    attributes: dict[str, object] = {}
    for name, module in model.named_modules():
        inside = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")}
        for key, value in {**inside, **dict(module._buffers)}.items():
            plain = isinstance(value, int | float | str | bool | type(None))
            version = value._version if isinstance(value, torch.Tensor) else 0
            size = len(value) if isinstance(value, list | dict | set) else 0
            attributes[f"{name}.{key}".lstrip(".")] = value if plain else (id(value), version, size)
    return attributes


def _logits(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return logits at one state of torch's generator, so that a random model repeats itself."""
    torch.manual_seed(0)
    return logits(model, images, IMAGES)


def _gap(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().max())


def accesses(folder: Path) -> list[str]:
    """Return what the folder's code names of network, files, processes and global state, from its syntax trees.

    Each is `<kind>: <expression> (<file>, line <n>)`. Nothing is run.

    Raises:
        BenchmarkError: a file that is not Python, or nested too deeply.
    """
    lines: dict[str, None] = {}
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("test_"):
            continue
        try:
            for kind, words, line in _accesses(code.tree_of(path, path.read_bytes())):
                lines[f"{kind}: {words} ({path.name}, line {line})"] = None
        except RecursionError:
            raise BenchmarkError(f"{path}: its expressions are nested too deeply to be read; write them flat") from None
    return list(lines)


def _accesses(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for module in modules:
                if kind := KINDS.get(module.partition(".")[0]):
                    yield kind, f"import of {module}", node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield ("file" if node.func.id == "open" else "code"), f"{node.func.id}()", node.lineno
        elif isinstance(node, ast.Attribute):
            words = ast.unparse(node)
            if node.attr in DOWNLOADS or words in DOWNLOADS:
                yield "network", words, node.lineno
            elif node.attr in METHODS or words in FILES:
                yield "file", words, node.lineno
            elif words in GLOBAL:
                yield "global state", words, node.lineno
        elif isinstance(node, ast.keyword) and node.arg == "pretrained" and ast.unparse(node.value) != "False":
            yield "network", f"pretrained={ast.unparse(node.value)}", node.value.lineno
        elif isinstance(node, ast.Global):
            yield "global state", f"global {', '.join(node.names)}", node.lineno
