"""What steps that judge a trained model share: the model, the evaluation images, the clean verdicts beside their own."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import files
from benchmark.steps.base import Outcome, Step, Work

if TYPE_CHECKING:
    import torch

    from benchmark.loading.judged import Spare
    from benchmark.verdicts.prediction import Predictions


TARGETS = 9  # of each image, that AutoAttack's targeted attacks have


@dataclass(frozen=True)
class Subject:
    """A row's network (loading/judged.py) with the images (n, c, h, w) and labels (n,) that it is judged on, and what it
    predicts for them when clean. `spares` are the same model in processes that were asked nothing yet, as many as the stage
    wants; none where the network was rebuilt.
    """

    model: torch.nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    batch_size: int
    clean: Predictions
    spares: Sequence[Spare] = ()
    together: int | None = None  # images in a call of a search, on a GPU: as many as its memory holds
    companion: Any = None  # what the step keeps beside the network

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

    spares: int = 0  # processes with the row's own model that the step wants beside the judged one
    attacks: bool = False  # so that it sees the track's attacked images alone
    searches: bool = False  # so that a GPU is asked about as many images at a time as its memory holds

    def companion(self, row: Row, name: str, device: torch.device) -> AbstractContextManager[Any]:
        """Processes of the step's own, made before this one computes on a GPU, which forks could then not use."""
        return nullcontext()

    @abstractmethod
    def rules(self, row: Row, name: str) -> dict[str, Any]:
        """The settings that are this step's own."""

    @abstractmethod
    def evaluate(self, work: Work, subject: Subject) -> Outcome: ...

    def settings(self, row: Row, name: str) -> dict[str, Any]:
        return {
            "data": row.track.data.model_dump(mode="json", exclude={"sha256", "path"}),
            "evaluation": row.track.evaluation.model_dump(mode="json"),
            "device": run_settings().evaluate.device,
            "model": row.settings.model,
            **self.rules(row, name),
        }

    def run(self, work: Work) -> Outcome:
        with self._subject(work) as (subject, shared, wall):
            outcome = self.evaluate(work, subject)
        return replace(outcome, columns={**shared, **outcome.columns}, fields={**outcome.fields, "wall": wall})

    @contextmanager
    def _subject(self, work: Work) -> Iterator[tuple[Subject, dict[str, torch.Tensor], str]]:
        """What it judges, columns of all images that go into every evidence, and what held the row's code."""
        import torch

        from benchmark.loading.judged import judged_model, spare_models
        from benchmark.loading.trained import evaluation_images
        from benchmark.runtime.torch_setup import set_up
        from benchmark.verdicts.pieces import MOST, fitting, room
        from benchmark.verdicts.prediction import predict

        device, rules = set_up(work.settings["device"]), work.row.track.evaluation
        # the row's process starts before an image or a label is read, of which it would else have a copy
        with (
            self.companion(work.row, work.name, device) as companion,
            judged_model(work.row, device) as judged,
            spare_models(work.row, device, 0 if judged.rebuilt else self.spares) as spares,
        ):
            images, labels = evaluation_images(work.row, device)
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
                model, images[seen], labels[seen], rules.batch_size, of_clean, spares, together, companion
            )
            shared = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
            yield subject, shared, judged.wall
            if device.type == "cuda":
                work.clock.memory(judged.memory)


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
