"""Everything that `rvb check` tries of a submission: its folder, then the model of each of its rows on a few random images:
same seed, same weights; each image by itself; nothing changed on the way. Nothing is trained.
"""

from __future__ import annotations

import ast
import re
import time
import timeit
from collections.abc import Callable, Iterator
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

SECONDS = 60.0  # no row is begun after this
ROW_SECONDS = 300.0  # that a row may take
FINDINGS: dict[str, type[Check] | type[Note]] = {"Check": Check, "Note": Note}
LICENSE = re.compile(r"\b[Ll]icense:\s*(?P<name>[A-Za-z0-9][\w.+-]*[\w+])")
OURS = "MIT"  # what CONTRIBUTING.md says a contribution is offered under
CERTIFIED = 2  # images
IMAGES = 2 * MIN_ROWS
CPU = torch.device("cpu")
LONGEST = 300  # characters of a message of submitted code
# names of a submission's code that do something beside computing
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


def check_submission(name: str, variant: str = "", seconds: float = SECONDS, device: torch.device = CPU) -> CheckReport:
    """Check the submission, or its one `variant`, on each track that it enters.

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
        return CheckReport(submission=name, checks=(failed("schema", error),), notes=())
    if variant and variant not in loaded.variants:
        submissions.settings(loaded, variant, "")  # the same of variants
    found: list[Check | Note] = [passed("schema", f"{folder}/submission.yaml loads"), *_of_folder(loaded, folder)]
    for one in [variant] if variant else sorted(loaded.variants):
        for track in sorted(loaded.variants[one].tracks):
            row = f"{name}-{one}"
            late = time.monotonic() > until
            words = f"not begun within {seconds:g} s; run `rvb check {row}`"
            findings = [failed("time", words)] if late else _of_row(track, row, device)
            found += [finding.model_copy(update={"row": row, "track": track}) for finding in findings]
    return CheckReport(
        submission=name,
        checks=tuple(one for one in found if isinstance(one, Check)),
        notes=tuple(one for one in found if isinstance(one, Note)),
    )


def _of_folder(submission: Submission, folder: Path) -> Iterator[Check | Note]:
    """License, citation and files."""
    readme, paper = folder / "README.md", submission.paper
    text = readme.read_text(errors="replace") if readme.exists() else ""
    given = LICENSE.search(text)
    tests = [path for path in folder.glob("test_*.py") if "\ndef test_" in path.read_text(errors="replace")]
    cited = bool(paper.title.strip() and paper.authors.strip())
    for name, there, what in (
        ("README", bool(text.strip()), f"{readme}: what differs from the paper, and why"),
        ("license", bool(given), f"in {readme} a line such as `License: {OURS}`"),
        ("citation", cited, "title and authors under `paper` in submission.yaml"),
        ("tests", bool(tests), f"{folder}/test_method.py with the paper's identities on tiny inputs"),
    ):
        if name == "citation" and str(paper.year) not in submission.name:
            words = f"is {paper.year}, not the year of the folder's name; change one of them"
            yield failed(name, f"`paper.year` in submission.yaml {words}")
        else:
            yield passed(name, "present") if there else failed(name, f"missing: write {what}")
    if given and given["name"] != OURS:
        yield Note(name="license", found=f"{given['name']}, not this repository's {OURS}: may it be kept here?")
    if not paper.url:
        yield Note(name="citation", found="`paper` has no url: is it published?")
    try:
        for words in accesses(folder):
            yield Note(name="beside computing", found=words)
    except BenchmarkError as error:
        yield failed("code", error)


def _of_row(track: str, name: str, device: torch.device) -> list[Check | Note]:
    """What `_tried` finds, in the sandbox."""
    findings = list[Check | Note]()

    def work(send: Hear) -> None:
        for finding in _tried(row, device):
            send({type(finding).__name__: finding.model_dump()})

    def hear(message: dict[str, Any]) -> None:
        kind, fields = next(iter(message.items()))
        finding = FINDINGS[kind].model_validate(fields)
        findings.append(finding.model_copy(update={"name": plain(finding.name), "found": plain(finding.found)}))

    in_force()  # a machine without what params.yaml asks for is no fault of the row
    try:
        row = load_row(track, name)
        names = [row.submission.name, *([row.source.submission.name] if row.source else [])]
        run(work, hear, *names, seconds=ROW_SECONDS, device=device.type)
    except BenchmarkError as error:
        findings.append(failed("builds", error))
    except (ValidationError, KeyError):
        findings.append(failed("builds", "its process returned malformed output"))
    return findings


def _tried(row: Row, device: torch.device) -> Iterator[Check | Note]:
    """The recipe, the model and what steps ask of it; an exception of submitted code becomes a failure with its place."""
    try:
        start(device)
        model = _make(row, 0, device)
    except BenchmarkError as error:
        yield failed("builds", error)
        return
    yield passed("builds", f"by build(data, **{dict(row.settings.model)})")
    images, labels = sample(row.track, device)
    for name, part in (("model", _model), ("training", _training), ("certificate", _certificate), ("size", _look)):
        try:
            yield from part(row, model, images, labels)
        except BenchmarkError as error:
            yield failed(name, error)
        except Exception as error:  # whatever the method raises, its place and its words are what its author needs
            yield failed(name, f"{methods.place(row.method, error)}: {said(error)[:LONGEST]}")


def _make(row: Row, seed: int, device: torch.device) -> nn.Module:
    torch.manual_seed(seed)
    return methods.build(row.submission, row.variant, row.track).to(device).eval()


def _model(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Check | Note]:
    sound = True
    for check in checks(lambda seed: _make(row, seed, images.device), row.track, images):
        sound = sound and check.ok
        yield check
    if not sound:
        return  # the division's words would say the same again
    try:
        facts = division.inspect(model, images, labels, row.submission)
    except BenchmarkError as error:
        yield failed("division", error)
        return
    yield passed("division", f"{facts.division}: {'; '.join(facts.division_reasons)}")
    if division.ONCE_WRONG not in facts.division_reasons:  # of a random model it cannot be told
        asked = depends_on_asking(answers(model, images, IMAGES, 0), "the model", is_open=True)
        advice = "" if asked.sound else "; no statistic may be taken over the batch"
        yield Check(name="each image by itself", ok=asked.sound, found=f"{asked.measured}{advice}")
    yield gradients(model, images, labels, row.track, row.submission.division == "open")


def _training(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Check | Note]:
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
    objective = fitting.training_objective(spec, attack)
    trained = _make(row, 0, images.device).train()
    loss = objective.loss(trained, images, labels, 1.0)
    if loss.requires_grad:
        loss.backward()
    learned = {name: p.grad for name, p in trained.named_parameters() if p.requires_grad}
    wrong = [name for name, grad in learned.items() if grad is not None and not torch.isfinite(grad).all()]
    idle = [name for name, grad in learned.items() if grad is None or not grad.any()]
    if wrong or not torch.isfinite(loss):
        where = wrong[0] if wrong else "the loss"
        yield failed("training", f"{where} is not finite in the first step; mend the scale of the model")
    elif len(idle) == len(learned):
        yield failed("training", "no parameter gets a gradient; mend what cuts them off")
    else:
        yield passed("training", f"a step of {spec.objective}: loss {float(loss.detach()):.3g}, gradients finite")
        if idle:
            yield Note(name="parameters without gradient", found=f"{len(idle)}, such as {idle[0]}: are they used?")


def _certificate(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Check | Note]:
    """Whether the certificate knows the model's layers."""
    if spec := row.settings.certificate:
        certified = _make(row, 0, images.device).requires_grad_(False)
        cache_weights(certified)
        radii = certified_radii(certified, images[:CERTIFIED], labels[:CERTIFIED], spec, CERTIFIED)
        yield passed("certificate", f"{spec.name} gives {len(radii)} images of the untrained model their radii")


def _look(row: Row, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Iterator[Check | Note]:
    """What a maintainer reads before running anything."""
    count = sum(p.numel() for p in model.parameters())
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    yield Note(name="size", found=f"{count:,} parameters, {size / 2**20:.2f} MiB of weights")
    quicker = min(timeit.repeat(lambda: logits(model, images, IMAGES), number=1, repeat=2)) / IMAGES
    words = f"{1000 * quicker:.2g} ms an image in batches of {IMAGES}, forward, on this machine"
    yield Note(name="time", found=words)
    prefix = f"submissions.{row.submission.name}."
    own = sorted({type(m).__name__ for m in model.modules() if type(m).__module__.startswith(prefix)})
    yield Note(name="modules of its own", found=", ".join(own) or "none")
    if left := left_behind(model, images):
        yield Note(name="a pass leaves traces", found=", ".join(left))


def passed(name: str, found: str) -> Check:
    return Check(name=name, ok=True, found=found)


def failed(name: str, words: object) -> Check:
    return Check(name=name, ok=False, found=str(words))


def sample(track: Track, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, c, h, w), uniform in [0, 1], and labels (n,), the same every time."""
    drawn = torch.rand((IMAGES, *track.data.shape), generator=torch.Generator().manual_seed(0))
    return drawn.to(device), (torch.arange(IMAGES) % track.data.classes).to(device)


def checks(make: Callable[[int], nn.Module], track: Track, images: torch.Tensor) -> Iterator[Check]:
    """Check the model that `make` builds under a seed. Without a good `output` no other check means anything."""
    model, wanted = make(0), (IMAGES, track.data.classes)
    with torch.no_grad():
        output = model(images.clone())
    if tuple(output.shape) != wanted:
        yield failed("output", f"{IMAGES} images give shape {tuple(output.shape)}; return logits of {wanted}")
    elif output.dtype != torch.float32:
        yield failed("output", f"logits are {output.dtype}; return float32, in which every verdict is judged")
    else:
        yield passed("output", f"{IMAGES} images give logits of shape {wanted}, float32")
        yield _seed(model, make(0), images)
        yield _state(model, make(1), images)
        yield _input_unchanged(model, images)
        if track.smoothing:
            yield _noisy(model, images, track.smoothing.sigma)


def _seed(model: nn.Module, again: nn.Module, images: torch.Tensor) -> Check:
    """Two builds under one seed."""
    name, one, other = "same seed, same weights", model.state_dict(), again.state_dict()
    equal = {key for key in one.keys() & other.keys() if torch.equal(one[key], other[key])}
    if differs := sorted((one.keys() | other.keys()) - equal):
        advice = "draw initial weights from torch's generator alone"
        return failed(name, f"{differs[0]} differs between two builds of one seed; {advice}")
    if gap := _gap(_at_seed(model, images), _at_seed(again, images)):
        advice = "something outside the weights is drawn anew at each build; make it a buffer or draw it from torch"
        return failed(name, f"equal weights, but logits {gap:.3g} apart; {advice}")
    return passed(name, f"{len(one)} tensors and all logits are equal in two builds")


def _state(model: nn.Module, other: nn.Module, images: torch.Tensor) -> Check:
    """Weights put into a model that was built under another seed: they must be all that makes the model."""
    other.load_state_dict(model.state_dict())
    own = _at_seed(model, images)
    gap = _gap(own, _at_seed(other, images))
    if gap > SAME * (1 + float(own.abs().max())):
        words = f"a model with the same weights says otherwise by {gap:.3g}; what it draws must be a persistent buffer"
        return failed("weights are the model", words)
    return passed("weights are the model", "put into another build, they give the same logits")


@torch.no_grad()
def _input_unchanged(model: nn.Module, images: torch.Tensor) -> Check:
    given = images.clone()
    model(given)
    if torch.equal(given, images):
        return passed("input is left alone", "the batch is the same after a pass")
    words = f"a pass changes its images by up to {_gap(given, images):.3g}; work on a copy (`x = x - m`)"
    return failed("input is left alone", words)


@torch.no_grad()
def _noisy(model: nn.Module, images: torch.Tensor, sigma: float) -> Check:
    """Images with smoothing's noise, whose pixels may lie outside [0, 1]."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).to(images.device)
    if torch.isfinite(model(images + sigma * noise)).all():
        return passed("noise", f"finite logits under noise of deviation {sigma:g}, as smoothing asks")
    words = "logits are not finite for pixels outside [0, 1], which smoothing asks; begin with x = x.clamp(0, 1)"
    return failed("noise", words)


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, track: Track, is_open: bool) -> Check:
    """Whether margin and cross-entropy have a gradient by each image that is finite and not zero; open models need none."""
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


@torch.no_grad()
def left_behind(model: nn.Module, images: torch.Tensor) -> list[str]:
    """Return what a pass in evaluation mode leaves on the model's modules or takes from torch's generator, in words."""
    before, drawn = _attributes(model), torch.get_rng_state()
    model(images.clone())
    after = _attributes(model)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    generator = [] if torch.equal(drawn, torch.get_rng_state()) else ["torch's generator"]
    return [f"attribute {key}" for key in changed] + generator


def _attributes(model: nn.Module) -> dict[str, object]:
    """Plain values by themselves, anything else by which object it is; tensors also by how often they were written to."""
    attributes: dict[str, object] = {}
    for name, module in model.named_modules():
        inside = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")}
        for key, value in {**inside, **dict(module._buffers)}.items():
            plain = isinstance(value, int | float | str | bool | type(None))
            version = value._version if isinstance(value, torch.Tensor) else 0
            size = len(value) if isinstance(value, list | dict | set) else 0
            attributes[f"{name}.{key}".lstrip(".")] = value if plain else (id(value), version, size)
    return attributes


def _at_seed(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Logits with torch's generator in one state, so that a random model says the same."""
    torch.manual_seed(0)
    return logits(model, images, IMAGES)


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def accesses(folder: Path) -> list[str]:
    """Network, files, processes and global state that the folder's code names, `<what>: <expression> (<file>, line <n>)`;
    read from its syntax trees, and nothing is run.

    Raises:
        BenchmarkError: a file that is no Python.
    """
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("test_"):
            continue
        try:
            for what, words, line in _accesses(code.tree_of(path, path.read_bytes())):
                found[f"{what}: {words} ({path.name}, line {line})"] = None
        except RecursionError:
            raise BenchmarkError(f"{path}: its expressions are nested too deeply to be read; write them flat") from None
    return list(found)


def _accesses(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for module in modules:
                if what := KINDS.get(module.partition(".")[0]):
                    yield what, f"import of {module}", node.lineno
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
