"""The base of steps on trained weights: the model, the evaluation images, and the clean predictions in each step's
evidence.
"""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.run_settings import run_settings
from benchmark.steps.base import Outcome, Step, Work

if TYPE_CHECKING:
    import torch

    from benchmark.attacks.prediction import Predictions
    from benchmark.evaluation.asked_again import Compared
    from benchmark.sandbox.model import Asked, Spare


TARGETS = 9  # target classes of AutoAttack's targeted attacks
ASKED_AGAIN = 128  # images


@dataclass(frozen=True)
class Subject:
    """A row's network (sandbox/model.py), images (n, c, h, w), labels (n,), and the predictions on the clean images.

    Attributes:
        spares: the same model in processes that were asked nothing yet; none for a rebuilt network.
        asked: a sample of the questions to the model; None for a rebuilt network.
        together: images in a call of a search, on a GPU: as many as its memory holds.
        companion: what the step keeps beside the network.
    """

    model: torch.nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    batch_size: int
    clean: Predictions
    spares: list[Spare] = field(default_factory=list)
    asked: Asked | None = None
    together: int | None = None
    companion: Any = None

    @property
    def first_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[: self.batch_size], self.labels[: self.batch_size]

    @property
    def device(self) -> torch.device:
        return self.images.device


class EvaluationStep(Step):
    """A step on trained weights.

    Its evidence also has the label, clean prediction and clean margin of each image, even of images that the step
    does not attack.
    """

    attacks: bool = False  # sees only the track's attacked images
    searches: bool = False  # asks a GPU about as many images at a time as its memory holds

    def companion(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the step's own processes, made before this one computes on a GPU, which forks could then not use."""
        return nullcontext()

    @property
    def spares(self) -> int:
        """How many processes with the row's own model are needed to ask that model again; 0 if it is not."""
        return 1

    @property
    def rules(self) -> dict[str, Any]:
        """The settings of this step alone: what the row or the track declares for it."""
        return {self.declared_in.rpartition(".")[2]: self.declared.model_dump(mode="json")}

    @abstractmethod
    def evaluate(self, work: Work, subject: Subject) -> Outcome: ...

    @property
    def settings(self) -> dict[str, Any]:
        track = self.row.track
        return {
            "data": track.data.model_dump(mode="json", exclude={"sha256", "path"}),
            "evaluation": track.evaluation.model_dump(mode="json"),
            "device": run_settings().evaluate.device,
            "model": self.row.settings.model,
            **self.rules,
        }

    def run(self, work: Work) -> Outcome:
        from benchmark.evaluation.indicators import true_gradients

        with self._subject(work) as (subject, shared, wall):
            try:
                outcome = self.evaluate(work, subject)
            except BenchmarkError:
                with suppress(BenchmarkError):  # the next run resumes from the scratch folder
                    if true_gradients({work.name: ask_again(work, subject)[1]}):
                        shutil.rmtree(work.scratch)
                raise
            ask_again(work, subject)
        return replace(outcome, columns={**shared, **outcome.columns}, fields={**outcome.fields, "wall": wall})

    @contextmanager
    def _subject(self, work: Work) -> Iterator[tuple[Subject, dict[str, torch.Tensor], str]]:
        """Yield the subject, the columns of all images that go into every evidence, and the parts of the sandbox."""
        import torch

        from benchmark.attacks.pieces import MOST, fitting, room
        from benchmark.attacks.prediction import predict
        from benchmark.data.tensors import evaluation_images
        from benchmark.runtime.torch_setup import set_up
        from benchmark.sandbox.model import Asked, SandboxedModel, evaluated_model, spare_models

        device, rules = set_up(work.settings["device"]), work.row.track.evaluation
        # the row's process starts before an image or a label is read: it would else have a copy
        with (
            self.companion(device) as companion,
            evaluated_model(work.row, device) as evaluated,
            spare_models(work.row, device, 0 if evaluated.claimed else self.spares) as spares,
        ):
            images, labels = evaluation_images(work.row, device)
            asked = None
            if isinstance(evaluated.model, SandboxedModel):
                asked = evaluated.model.asked = Asked(whole=work.row.submission.division == "open")
            evaluated.confirm(images, rules.batch_size, work.row.name)
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                # an open model may draw noise: every step sees the same clean pass
                torch.manual_seed(rules.seed)
                clean = predict(evaluated.model, images, labels, rules.batch_size)
            seen = slice(rules.attacked if self.attacks else None)
            clean_seen = replace(clean, prediction=clean.prediction[seen], margin=clean.margin[seen])
            model, together = evaluated.model, None
            # not on a CPU, where the kernel kills a process that wants too much memory
            if device.type != "cpu" and (self.attacks or self.searches):
                model = fitting(model, images[: rules.batch_size], work.say)
                if self.searches:
                    most = TARGETS * len(images[seen]) if self.attacks else MOST  # runs of an attack at a time
                    together = room(model, images[: rules.batch_size], min(most, MOST))
            subject = Subject(
                model, images[seen], labels[seen], rules.batch_size, clean_seen, spares, asked, together, companion
            )
            shared = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
            yield subject, shared, evaluated.wall
            if device.type == "cuda":
                work.clock.memory(evaluated.memory)


def ask_again(
    work: Work,
    subject: Subject,
    count: int = ASKED_AGAIN,
    other: torch.nn.Module | None = None,
    final: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor | None, Compared]:
    """Ask again `count` of the images that the model was asked about since the last call (evaluation/asked_again.py).

    Args:
        other: the model to ask, unless it is one of the subject's spares.
        final: images (k, c, h, w) and their logits, which decide: all of them are asked again, in place of the last call's.

    Returns:
        (n,) bool: in the open division, the images with a different answer; None for a rebuilt network. And of the gradients
        that the model gave since then, how many are not those of its answers (`false_slopes`).

    Raises:
        BenchmarkError: an answer differs in the closed division. The step's unfinished work is removed.
    """
    from benchmark.evaluation.asked_again import check_answers

    calls, slopes = (subject.asked.take(), subject.asked.take_gradients()) if subject.asked else ([], [])
    if not calls or (other is None and not subject.spares):
        return None, (0, 0, 0)
    if final is not None:
        calls[0] = final[0].cpu(), final[1].to(calls[0][1]), None  # rounding is judged by the dtype
    is_open = work.row.submission.division == "open"
    try:
        with nullcontext(other) if other is not None else subject.spares.pop()() as again:
            return check_answers(again, calls, subject.images, slopes, count=count, row=work.row.name, is_open=is_open)
    except BenchmarkError:
        shutil.rmtree(work.scratch)
        raise


def by_blocks(
    work: Work, count: int, size: int, compute: Callable[[range], dict[str, torch.Tensor]], doing: str
) -> dict[str, torch.Tensor]:
    """Return columns of `count` images, computed `size` at a time; finished blocks are read from `work.blocks`.

    Args:
        compute: columns, (k,) each, of k images.
        doing: the verb in a line of progress.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save

    blocks = []
    for first in range(0, count, size):
        places, kept = range(first, min(first + size, count)), work.blocks / f"{first}.safetensors"
        if not kept.exists():
            columns = {name: column.cpu().contiguous() for name, column in compute(places).items()}
            files.write(kept, save(columns, {"order": json.dumps([*columns])}))  # safetensors has an order of its own
            work.say(f"{doing} {places.stop} of {count} images")
        with safe_open(kept, "pt") as stored:
            blocks.append({name: stored.get_tensor(name) for name in json.loads(stored.metadata()["order"])})
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
