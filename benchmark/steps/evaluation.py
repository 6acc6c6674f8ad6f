"""What steps that judge a trained model share: the model, the evaluation images, the clean verdicts beside their own."""

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
    from benchmark.sandbox.model import Asked, Spare


TARGETS = 9  # of each image, that AutoAttack's targeted attacks have
ASKED_AGAIN = 128  # images


@dataclass(frozen=True)
class Subject:
    """A row's network (sandbox/model.py) with the images (n, c, h, w) and labels (n,) that it is judged on, and what it
    predicts for them when clean.

    Attributes:
        spares: the same model in processes that were asked nothing yet; none where the network was rebuilt.
        asked: some of what the model was asked; None where the network was rebuilt.
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
    """A step on trained weights. Its evidence carries label, clean prediction and clean margin of each image too, of
    those as well that a step which `attacks` does not see.
    """

    attacks: bool = False  # so that it sees the track's attacked images alone
    searches: bool = False  # so that a GPU is asked about as many images at a time as its memory holds

    def companion(self, device: torch.device) -> AbstractContextManager[Any]:
        """Processes of the step's own, made before this one computes on a GPU, which forks could then not use."""
        return nullcontext()

    @property
    def spares(self) -> int:
        """How many processes with the row's own model it takes to ask that model again; none where it is not."""
        return 1

    @property
    def rules(self) -> dict[str, Any]:
        """The settings that are this step's own: what the row or the track declares for it."""
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
        with self._subject(work) as (subject, shared, wall):
            try:
                outcome = self.evaluate(work, subject)
            except BenchmarkError:
                with suppress(BenchmarkError):
                    ask_again(work, subject)  # the next run takes up what stands in the scratch folder
                raise
            ask_again(work, subject)
        return replace(outcome, columns={**shared, **outcome.columns}, fields={**outcome.fields, "wall": wall})

    @contextmanager
    def _subject(self, work: Work) -> Iterator[tuple[Subject, dict[str, torch.Tensor], str]]:
        """What it judges, columns of all images that go into every evidence, and what held the row's code."""
        import torch

        from benchmark.attacks.pieces import MOST, fitting, room
        from benchmark.attacks.prediction import predict
        from benchmark.data.tensors import evaluation_images
        from benchmark.runtime.torch_setup import set_up
        from benchmark.sandbox.model import Asked, SandboxedModel, evaluated_model, spare_models

        device, rules = set_up(work.settings["device"]), work.row.track.evaluation
        # the row's process starts before an image or a label is read, of which it would else have a copy
        with (
            self.companion(device) as companion,
            evaluated_model(work.row, device) as judged,
            spare_models(work.row, device, 0 if judged.claimed else self.spares) as spares,
        ):
            images, labels = evaluation_images(work.row, device)
            asked = None
            if isinstance(judged.model, SandboxedModel):
                asked = judged.model.asked = Asked(whole=work.row.submission.division == "open")
            judged.confirm(images, rules.batch_size, work.row.name)
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                # an open model may draw noise of its own: every step sees the same clean pass
                torch.manual_seed(rules.seed)
                clean = predict(judged.model, images, labels, rules.batch_size)
            seen = slice(rules.attacked if self.attacks else None)
            of_clean = replace(clean, prediction=clean.prediction[seen], margin=clean.margin[seen])
            model = judged.model
            together = None
            on_gpu = device.type != "cpu"  # on a CPU the kernel ends a process that wants too much memory, unasked
            if on_gpu and (self.attacks or self.searches):
                model = fitting(model, images[: rules.batch_size], work.say)
                if self.searches:
                    most = TARGETS * len(images[seen]) if self.attacks else MOST  # runs that an attack has at a time
                    together = room(model, images[: rules.batch_size], min(most, MOST))
            subject = Subject(
                model, images[seen], labels[seen], rules.batch_size, of_clean, spares, asked, together, companion
            )
            shared = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
            yield subject, shared, judged.wall
            if device.type == "cuda":
                work.clock.memory(judged.memory)


def ask_again(
    work: Work, subject: Subject, count: int = ASKED_AGAIN, other: torch.nn.Module | None = None
) -> torch.Tensor | None:
    """Ask again `count` of the images that the model was asked about since the last time (evaluation/asked_again.py).

    Args:
        other: the model to ask, if it is not to be one of the subject's spares.

    Returns:
        (n,) bool: in the open division the images about which it answers otherwise; None where the network was rebuilt.

    Raises:
        BenchmarkError: it answers otherwise in the closed division. The step's unfinished work is removed.
    """
    from benchmark.evaluation.asked_again import check_answers

    calls = subject.asked.take() if subject.asked else []
    if not calls or (other is None and not subject.spares):
        return None
    is_open = work.row.submission.division == "open"
    try:
        with nullcontext(other) if other is not None else subject.spares.pop()() as again:
            return check_answers(again, calls, subject.images, count=count, row=work.row.name, is_open=is_open)
    except BenchmarkError:
        shutil.rmtree(work.scratch)
        raise


def by_blocks(
    work: Work, count: int, size: int, compute: Callable[[range], dict[str, torch.Tensor]], doing: str
) -> dict[str, torch.Tensor]:
    """Columns of `count` images, computed `size` at a time; blocks that stand in `work.blocks` are taken from there.

    Args:
        compute: columns, (k,) each, of k images.
        doing: what a line of progress calls it.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save

    found = []
    for first in range(0, count, size):
        places, kept = range(first, min(first + size, count)), work.blocks / f"{first}.safetensors"
        if not kept.exists():
            columns = {name: column.cpu().contiguous() for name, column in compute(places).items()}
            files.write(kept, save(columns, {"order": json.dumps([*columns])}))  # the format has one of its own
            work.say(f"{doing} {places.stop} of {count} images")
        with safe_open(kept, "pt") as stored:
            found.append({name: stored.get_tensor(name) for name in json.loads(stored.metadata()["order"])})
    return {name: torch.cat([one[name] for one in found]) for name in found[0]}
