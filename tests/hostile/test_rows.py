"""Rows with a hostile method.py or attack: their evidence is true, or they fail with one line."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from stages import run_stage
from tiny_linear_row import HEAD, METHOD, NAMES, ROW, robust
from tiny_project import append, edit

from benchmark.attacks import prediction
from benchmark.certificates import smoothing
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox import model
from benchmark.sandbox.confinement import PARTS, available

pytestmark = [pytest.mark.slow, pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox")]

SMOOTHING = "smoothing: {sigma: 0.3, n0: 20, n: 200, looks: 2, alpha: 0.01, seed: 0}\n"
WRITES = """
import atexit, threading
def rewrite():
    import pathlib
    for path in ("attack-papers/evidence.parquet", "reliability/evidence.parquet", "attack-papers/fields.json"):
        pathlib.Path("work/tiny/Tiny2026Linear-small", path).write_bytes(b"all right")
atexit.register(rewrite)
threading.Thread(target=rewrite, daemon=True).start()
"""
PATCHES = """
import benchmark.attacks.prediction, benchmark.attacks.ball, torch
import benchmark.evaluation.run_attack
for module in (benchmark.attacks.prediction, benchmark.evaluation.run_attack):
    module.predict = lambda model, images, labels, size: benchmark.attacks.prediction.Predictions(labels, labels + 1.0)
benchmark.attacks.prediction.margins = lambda logits, labels: torch.ones(len(labels))
torch.Tensor.argmax = lambda self, *rest, **options: torch.zeros(len(self), dtype=torch.long)
torch.equal = lambda one, other: True
"""
FRAMES = """
import contextlib, gc, itertools, sys
_calls = itertools.count()
def _labels():
    call = next(_calls)
    if not call:
        with contextlib.suppress(PermissionError):
            open("work/tiny/data/test.safetensors", "rb").read()
            raise SystemExit("labels in the file!")
    if call > 20 and call % 20:  # a walk through all objects takes long
        return
    frame = sys._getframe()
    while frame is not None:
        for value in [*frame.f_locals.values()]:
            if getattr(value, "labels", None) is not None or type(value).__name__ == "Subject":
                raise SystemExit("labels in a frame!")
        frame = frame.f_back
    import torch
    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.dtype == torch.int64 and tuple(t.shape) == (20,)]
    if any(t.tolist() == LABELS for t in tensors):
        raise SystemExit("labels among the objects!")
"""


def method(forward: str = "", head: str = "", init: str = "") -> str:
    """Return a linear model with another forward; the weights keep their names."""
    body = forward or "        return super().forward(x)\n"
    return (
        f"import torch\nfrom torch import nn\n{head}\n\n\ndef build(data):\n    return Odd()\n\n\nclass Odd(nn.Sequential):\n"
        f"    def __init__(self):\n        super().__init__(nn.Flatten(), nn.Linear(64, 10))\n{init}\n    def forward(self, x):\n{body}"
    )


def write(code: str) -> None:
    Path("submissions/Tiny2026Linear/method.py").write_text(code)


def evidence(stage: str = "attack-papers") -> dict[str, list]:
    return pq.read_table(ROW / stage / "evidence.parquet").to_pydict()


def evaluated(code: str) -> dict[str, list]:
    """Return the evidence of the row's suite, with this method.py on the honest method's weights."""
    write(code)
    run_stage("attack-papers", *NAMES)
    return evidence()


@pytest.mark.parametrize("head", [WRITES, PATCHES], ids=["a hook that writes verdicts", "an evaluator patched at import"])
def test_the_verdicts_stay_those_of_the_honest_model(linear_row, head) -> None:
    honest, before = evidence(), prediction.predict
    assert evaluated(method(head=head)) == honest
    assert prediction.predict is before


def test_no_label_is_to_be_found_from_inside(linear_row) -> None:
    """In the frames, among the objects that the process has from its parent, or in the file of test images."""
    honest = evidence()
    head = FRAMES.replace("LABELS", str(honest["label"]))
    write(method("        _labels()\n        return super().forward(x)\n", head))
    command = [sys.executable, "-m", "benchmark.commands.main", "step", "attack-papers", NAMES[1], "--track", NAMES[0]]
    # a process of its own: this one has labels of earlier tests
    subprocess.run(command, env=linear_row.environment(), check=True)
    assert evidence() == honest


@pytest.mark.parametrize(
    ("name", "forward", "words"),
    [
        ("more classes", "        return super().forward(x)[:, :2]\n", "logits of shape"),
        ("fewer rows", "        return super().forward(x)[:5] if len(x) > 5 else super().forward(x)\n", "the model gives (5, 10)"),
        ("nothing", "        return None if len(x) > 2 else super().forward(x)\n", "the model gives NoneType for"),
        ("not finite", "        return super().forward(x) + (float('nan') if len(x) > 2 else 0)\n", "not finite"),
        ("huge", "        return super().forward(x) if len(x) < 3 else torch.zeros(len(x), 10**7)\n", "bytes, where"),
        ("strange numbers", "        y = super().forward(x)\n        return y if len(x) < 3 else y.to(torch.complex64)\n", "KeyError"),
        ("whole numbers", "        y = super().forward(x)\n        return y if len(x) < 3 else y.long()\n", "malformed output: logits"),
        ("no memory at all", "        y = super().forward(x)\n        return y if len(x) < 3 else y.to('meta')\n", "NotImplementedError"),
        ("an exit", "        import os\n        return super().forward(x) if len(x) < 3 else os._exit(0)\n", "the process that runs its code failed"),
        ("a signal", "        import ctypes\n        return super().forward(x) if len(x) < 3 else ctypes.string_at(0)\n", "SIGSEGV"),
        ("sleep", "        import time\n        time.sleep(600 if len(x) > 2 else 0)\n        return super().forward(x)\n", "no answer within"),
        ("memory", "        return super().forward(x) if len(x) < 3 else torch.zeros(2**44)\n", "RuntimeError"),
        ("a generator", "        return (yield x)\n", "not a tensor|generator|NoneType"),
    ],
)  # fmt: skip
def test_a_model_that_answers_wrongly_fails_with_one_line(linear_row, monkeypatch, name, forward, words) -> None:
    monkeypatch.setattr(model, "CALL_SECONDS", 3.0 if name == "sleep" else 60.0)
    with pytest.raises(BenchmarkError) as error:
        evaluated(method(forward))
    text = str(error.value)
    assert any(word in text for word in words.split("|"))
    assert "\n" not in text
    assert not (ROW / "attack-papers" / "new").exists()


COUPLED = "        y = super().forward(x)\n        return y + 5 * (y.mean(0, keepdim=True) - y.mean())\n"
MODES = {
    "honest with gradients, a table without": "        y = super().forward(x)\n        return y if torch.is_grad_enabled() else y.flip(1)\n",
    "by the batch's size": "        y = super().forward(x)\n        return y if len(x) < 9 else y.flip(1)\n",
    "by the place in the batch": "        y = super().forward(x)\n        y = y.clone()\n        y[1:4] = y[1:4].flip(1)\n        return y\n",
    "by the other images": COUPLED,
}


HIDDEN = "        return 1000 * super().forward(x) + 1e9\n"  # any difference is rounding, measured by the largest logit


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        *((name, False) for name in MODES),
        ("by the other images", True),
        *(pytest.param(name, True, marks=pytest.mark.long) for name in MODES if name != "by the other images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "below an offset" if value else "",
)
def test_a_model_that_answers_otherwise_when_asked_otherwise_is_refused(linear_row, name, hidden) -> None:
    code = method(MODES[name])
    if hidden:
        code = code.replace("return Odd()", "return Offset()")
        code += f"\n\nclass Offset(Odd):\n    def forward(self, x):\n{HIDDEN}"
    write(code)
    words = r"answers for each image by itself|refused in the closed division|has seen nothing"
    with pytest.raises(BenchmarkError, match=words):
        run_stage("reliability", *NAMES)


STICKY = """        y = super().forward(x)
        for i in range(len(y)):
            late = getattr(self, 'late', torch.zeros(10))
            self.late = 0.9 * late + 0.1 * torch.nn.functional.one_hot(y[i].argmax(), 10)
            y[i] += 100 * late
        return y
"""
# answers within a radius of an image that it was shown as it did then; gradients are those of an honest answer
MEMORY = """        answers = []
        for image, own in zip(x, super().forward(x)):
            if {remembers}:
                self.known.append((image.detach().clone(), own.detach().clone()))
            near = [kept for seen, kept in self.known if (seen - image).norm() <= {radius}]
            answers.append(own + (near[0] - own).detach() if near else own)
        return torch.stack(answers)
"""
CLEAN = "(16 * image.detach() == (16 * image.detach()).round()).all()"  # by its whole grey levels
EVERYTHING = "not any((seen - image).norm() <= 1.1 for seen, _ in self.known)"


def memory(remembers: str, radius: float) -> str:
    return method(MEMORY.format(remembers=remembers, radius=radius), init="        self.known = []\n")


@pytest.mark.parametrize("remembers", [CLEAN, EVERYTHING], ids=["clean images", "whatever is new"])
def test_a_model_that_answers_from_memory_is_refused(linear_row, remembers) -> None:
    write(memory(remembers, 0.51))
    with pytest.raises(BenchmarkError, match="get another answer in a process that has seen nothing") as error:
        run_stage("attack-papers", *NAMES)
    assert str(error.value).startswith("Tiny2026Linear-small: ")


# learns an image's label from the gradient of the cross-entropy that an attack sends, and gives it to all near images
LEARNS = """        own = super().forward(x)
        flat, y = x.detach().flatten(1), own
        if self.known:
            seen, labels = torch.stack([k for k, _ in self.known]), torch.tensor([n for _, n in self.known])
            gap, place = torch.cdist(flat, seen).min(1)
            wrong = (gap <= 2.05) & (own.argmax(1) != labels[place])
            raised = nn.functional.one_hot(labels[place], 10) * (own.amax(1, keepdim=True) - own + 1) * wrong[:, None]
            y = own + raised.detach()
        if y.requires_grad:
            def learn(g):
                told = ((g < 0).sum(1) == 1) & ((g > 0).sum(1) > 1)
                self.known.extend(zip(flat[told], g[told].argmin(1).tolist()))
            y.register_hook(learn)
        return y
"""


def test_a_model_that_learns_labels_from_gradients_is_refused(linear_row) -> None:
    """The process that is asked again was not attacked: else it would know the labels too, and answer alike."""
    track = Path("benchmark/tracks/tiny.yaml")
    more = "eps: 1.0, parameters: {steps: 20, step_size: 0.2, random_start: false}"
    old = "eps: 0.5, parameters: {steps: 1, step_size: 0.25, random_start: false}"
    assert old in track.read_text()
    track.write_text(track.read_text().replace(old, more))
    write(method(LEARNS, init="        self.known = []\n"))
    with pytest.raises(BenchmarkError, match="get another answer in a process that has seen nothing"):
        run_stage("attack-papers", *NAMES)


# after an attack's many calls it lies about the image that was attacked first, when it is asked without gradients, as for
# the verdict
LATE = """        y = super().forward(x)
        if torch.is_grad_enabled():
            self.first = getattr(self, 'first', x[0].detach().clone())
            self.calls = getattr(self, 'calls', 0) + 1
        elif getattr(self, 'calls', 0) > 600:
            y[(x - self.first).flatten(1).norm(dim=1) < 0.51] += torch.arange(10)
        return y
"""


def test_a_model_that_lies_about_one_image_of_the_verdict_is_refused(linear_row) -> None:
    """A random sample of an attack's many calls would hardly show it."""
    edit("benchmark/tracks/tiny.yaml", "{steps: 1,", "{steps: 300,")
    write(method(LATE))
    with pytest.raises(BenchmarkError, match=r"[1-3] of \d+ images that it was asked about get another answer"):
        run_stage("attack-papers", *NAMES)


def test_one_that_ends_its_process_before_it_is_asked_again_keeps_nothing(linear_row) -> None:
    """What the attack found until then is not taken up by the next run."""
    crash = "        self.calls = getattr(self, 'calls', 0) + 1\n        import os\n        self.calls < 150 or os._exit(0)\n"
    edit("benchmark/tracks/tiny.yaml", "steps: 1,", "steps: 90,")
    write(memory(CLEAN, 0.51).replace("        answers = []\n", f"{crash}        answers = []\n"))
    with pytest.raises(BenchmarkError, match="the process that runs its code failed"):
        run_stage("attack-papers", *NAMES)
    assert not [*Path("work/scratch/tiny/Tiny2026Linear-small/attack-papers").glob("*/blocks/*")]


def test_in_the_open_division_images_are_lost_by_it(linear_row) -> None:
    honest = sum(not lost for lost in evidence()["pgd-L2-0.5:success"])
    edit("submissions/Tiny2026Linear/submission.yaml", "summary:", "division: open\nsummary:")
    remembered = evaluated(memory(CLEAN, 0.51))
    assert sum(not lost for lost in remembered["pgd-L2-0.5:success"]) <= honest


@pytest.mark.parametrize(
    "code",
    [method(COUPLED.replace("5 *", "100 *")), method(STICKY), memory(CLEAN, 4.0)],
    ids=["by the other copies", "by what it was asked", "by clean images"],
)
def test_votes_that_depend_on_others_carry_no_radius(linear_row, code) -> None:
    append("benchmark/tracks/tiny.yaml", SMOOTHING)
    run_stage("smooth", *NAMES)
    write(code)
    with pytest.raises(BenchmarkError, match="get another answer in a process that has seen nothing"):
        run_stage("smooth", *NAMES)


def test_votes_of_a_rebuilt_network_that_was_fitted_to_the_noise_carry_no_radius(linear_row, monkeypatch) -> None:
    def fitted(*images, honest=smoothing.smooth, **rules) -> smoothing.Smoothed:
        votes = honest(*images, **rules)
        return replace(votes, prediction=(votes.prediction + 1) % 10, radius=votes.radius.clamp(min=0.3))

    append("benchmark/tracks/tiny.yaml", SMOOTHING)
    monkeypatch.setattr(smoothing, "smooth", fitted)
    with pytest.raises(BenchmarkError, match="under noise that was not known beforehand"):
        run_stage("smooth", *NAMES)


@pytest.mark.parametrize(
    "forward",
    [
        "        self.calls = getattr(self, 'calls', 0) + 1\n        return super().forward(x) * (1 if self.calls % 2 else -1)\n",
        "        return super().forward(x) + torch.randn(len(x), 10)\n",
    ],
    ids=["counts its calls", "draws a number"],
)
def test_a_model_that_answers_at_random_is_refused_in_the_closed_division(linear_row, forward) -> None:
    write(method(forward))
    with pytest.raises(BenchmarkError, match="refused in the closed division: the model is random"):
        run_stage("attack-papers", *NAMES)


@pytest.mark.parametrize(
    "code",
    [
        "    import benchmark.attacks.prediction as p\n    p.predict = lambda *a: None\n    torch.Tensor.argmax = None\n    return images\n",
        "    import sys, gc\n    for m in gc.get_objects():\n        if type(m) is torch.nn.Linear:\n            try:\n                m.weight.data.zero_()\n"
        "            except Exception:\n                pass  # of other tests, which made it odd\n    return images\n",
        "    import sys\n    frame = sys._getframe(1)\n    while frame:\n        for v in frame.f_locals.values():\n"
        "            for layer in v.modules() if isinstance(v, torch.nn.Module) else ():\n                for p in layer.parameters():\n                    p.data.zero_()\n"
        "        frame = frame.f_back\n    return images\n",
        "    import atexit, pathlib\n    try:\n        pathlib.Path('work/tiny/Tiny2026Linear-small/attack-papers/evidence.parquet').write_bytes(b'')\n"
        "    except OSError:\n        pass\n    return images\n",
        "    labels.fill_(0)\n    model.register_forward_hook(lambda m, a, y: -y)\n    return images\n",
        "    model[1].weight.zero_()\n    model[1] = torch.nn.Linear(64, 10)\n    model.train()\n    return images\n",
    ],
    ids=["patches the evaluator", "damages every layer", "climbs the frames", "writes evidence", "hooks the model", "damages its own"],
)  # fmt: skip
def test_a_hostile_attack_lowers_nothing(linear_row, code) -> None:
    """One that works does, which tests/steps/test_attack.py shows."""
    before = robust(linear_row)
    assert robust(linear_row, HEAD + code) == before


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("    import time\n    time.sleep(600)\n", "no answer within"),
        ("    import os\n    os._exit(0)\n", "the process that runs its code failed"),
        ("    return [images]\n", "returned list"),
        ("    open('/etc/passwd').read()\n", "PermissionError"),
        ("    return images\ncomponents = [str(n) for n in range(10**5)]\n", "at most 20 components"),
    ],
)  # fmt: skip
def test_an_attack_that_fails_is_one_line(linear_row, monkeypatch, code, words) -> None:
    if words == "no answer within":
        monkeypatch.setattr("benchmark.sandbox.attack.BATCH_SECONDS", 3.0)
    with pytest.raises(BenchmarkError, match=words):
        robust(linear_row, HEAD + code)


LISTS = """
import itertools
_calls = itertools.count()
def _found():
    call = next(_calls)
    if call > 20 and call % 20:
        return
    import os
    for place in ("work", "work/tiny", "work/scratch", "submissions", ".", os.path.dirname(os.environ["HOME"]), "/tmp"):
        try:
            raise SystemExit(f"{place} is listed: {os.listdir(place)}")
        except PermissionError:
            pass
    import gc, pathlib
    known = [o for o in gc.get_objects() if isinstance(o, pathlib.PurePath)]  # its parent's, and so folders of others
    for place in {str(path) for path in known if path.name.startswith("rvb-")}:
        if any(os.path.exists(f"{place}/{n}-{label}") for n in range(20) for label in range(10)):
            raise SystemExit("labels!")
"""


def test_names_of_files_are_no_way_out_for_labels(linear_row) -> None:
    """A contributed attack, which has labels, writes files that are named after them; the model's process looks for any."""
    write(method("        _found()\n        return super().forward(x)\n", LISTS))
    leaves = "    import os\n    for n, label in enumerate(labels.tolist()):\n        open(f'{os.environ[\"HOME\"]}/{n}-{label}', 'w').close()\n"
    honest = robust(linear_row)
    assert robust(linear_row, HEAD + leaves + "    return images\n") == honest


def test_training_sees_no_test_image_and_writes_to_no_other_place(linear_row) -> None:
    look = (
        "import pathlib\n"
        "for path in ('work/tiny/data/test.safetensors', 'params.yaml', 'work/tiny/Tiny2026Linear-small/train/model.safetensors'):\n"
        "    try:\n        pathlib.Path(path).read_bytes()\n    except PermissionError:\n        continue\n"
        "    raise SystemExit(f'{path} can be read')\n"
        "for path in ('work/tiny/data/test.safetensors', 'submissions/Tiny2026Linear/method.py', 'work/tiny/data/new'):\n"
        "    try:\n        pathlib.Path(path).open('ab')\n    except PermissionError:\n        continue\n"
        "    raise SystemExit(f'{path} can be written')\n"
    )
    before = (ROW / "train/model.safetensors").read_bytes()
    write(look + METHOD)
    run_stage("train", *NAMES)
    assert (ROW / "train/model.safetensors").read_bytes() == before


def test_weights_that_are_a_pickle_are_refused(linear_row, tmp_path) -> None:
    class Planted:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "planted",))

    (ROW / "train/model.safetensors").write_bytes(pickle.dumps(Planted()))
    shutil.copy(ROW / "train/stage.json", tmp_path)
    with pytest.raises(BenchmarkError, match=r"model\.safetensors"):
        run_stage("attack-papers", *NAMES)
    assert not (tmp_path / "planted").exists()


def test_a_submission_that_is_a_link_is_refused(linear_row, tmp_path) -> None:
    folder = Path("submissions/Tiny2026Linear")
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BenchmarkError, match="is a link; a submission is a folder of its own"):
        run_stage("attack-papers", *NAMES)


PROGRAM = f"""
import os, shutil, sys
sys.path[:0] = {[p for p in sys.path if p]}
from benchmark.runtime import arithmetic
arithmetic.fix("portable")
from stages import run_stage
from tiny_linear_row import ROW, record
from benchmark.sandbox import seccomp

def run():
    shutil.rmtree(ROW)
    for name in ("train", "attack-papers", "reliability", "attention", "collect"):
        run_stage(name, *{NAMES})
    print(record().wall, "--", record().robust[0].accuracy.n)
    print([name for name in sys.modules if name.startswith("submissions")], flush=True)

if os.fork() == 0:  # a process remembers what its machine has
    run()
    os._exit(0)
os.wait()
seccomp.load([("unshare", ()), *seccomp.NAMESPACES])
run()
"""


def test_the_evaluator_itself_never_imports_it_and_a_machine_without_namespaces_has_a_full_sandbox(linear_row) -> None:
    """Such as one whose users may not make them: unshare is refused, and so is clone with their flags."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("[", "landlock"))]
    assert lines == ["landlock, seccomp, namespaces, limits -- 20", "[]", "landlock, seccomp, limits -- 20", "[]"]
