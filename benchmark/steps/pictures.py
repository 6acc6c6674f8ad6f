"""Step `pictures`: pictures of one row's perturbations (Debenedetti 2022, Figures 11 to 14)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmark.records.beside import Picture
from benchmark.runtime import files
from benchmark.specs.threat import ThreatModel
from benchmark.specs.track import PicturesSpec
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject

if TYPE_CHECKING:
    import torch


class Pictures(EvaluationStep):
    """A PNG for each figure beside the Record, and the column `pictured <norm> <eps>`: images that PGD broke are lost."""

    declared_in = "track.pictures"
    refusal = "track {track} declares no pictures"
    attacks = True

    @property
    def rules(self) -> dict[str, Any]:
        return super().rules | {"division": self.row.submission.division}

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import torch

        from benchmark.attacks.gradients import attackable
        from benchmark.attacks.prediction import predict
        from benchmark.evaluation.pictures import perturbed

        if work.row.submission.division == "open":
            subject = replace(subject, model=attackable(subject.model, *subject.first_batch)[0])
        rules, model, labels = self.declared, subject.model, subject.labels
        threat = ThreatModel(norm="Linf", eps=rules.eps)
        shown = subject.images[: rules.images]
        attacked = perturbed(model, shown, labels[: rules.images], threat, steps=rules.steps, seed=rules.seed)
        after = predict(model, attacked, labels[: rules.images], subject.batch_size)
        figures = [
            _perturbations(rules, shown, attacked, labels.tolist(), after.prediction.tolist()),
            *(_accumulated(work, subject, rules, radius) for radius in rules.radii),
        ]
        broken = torch.zeros_like(subject.clean.correct)
        broken[: rules.images] = ~after.correct
        return Outcome(
            columns={f"pictured {threat.exact}": broken & subject.clean.correct},
            fields={"pictures": [picture.model_dump(mode="json") for picture, _ in figures]},
            published={f"pictures/{picture.file}": data for picture, data in figures},
            summary=f"{len(figures)} pictures drawn",
        )


def _perturbations(
    rules: PicturesSpec, shown: torch.Tensor, attacked: torch.Tensor, labels: list[int], predicted: list[int]
) -> tuple[Picture, bytes]:
    """Return Figures 11 and 13: images, perturbations as grey values, attacked images."""
    from benchmark.evaluation.pictures import grey, rescaled

    moved = grey(rescaled(attacked - shown, rules.eps))
    pairs = ", ".join(f"{label} ({answer})" for label, answer in zip(labels, predicted, strict=False))
    return _picture(
        "perturbations",
        [shown, moved, attacked],
        title=f"Perturbations, Linf {rules.eps:g}",
        alt=f"Three rows of {len(shown)} images: clean, their perturbation in grey, and attacked.",
        caption=f"PGD of {rules.steps} steps from a random start, Linf {rules.eps:g}. Rows: the clean image, the "
        "perturbation, the sum. In the middle row mid-grey is no change, black and white the whole radius; shapes of the "
        f"image seen there are what the model looks at. Label, and in brackets what the model says at last: {pairs}.",
    )


def _accumulated(work: Work, subject: Subject, rules: PicturesSpec, radius: float) -> tuple[Picture, bytes]:
    """Return Figures 12 and 14: noise, and noise after PGD towards random classes."""
    from benchmark.attacks.prediction import logits
    from benchmark.evaluation.pictures import accumulated, noise

    data, threat = work.row.track.data, ThreatModel(norm="L2", eps=radius)
    starts, targets = (t.to(subject.device) for t in noise(data.shape, data.classes, rules.images, rules.seed))
    moved_noise = accumulated(subject.model, starts, targets, threat, steps=rules.steps)
    scores = logits(subject.model, moved_noise, subject.batch_size).softmax(1)
    sure = scores.gather(1, targets[:, None])[:, 0].tolist()
    pairs = ", ".join(f"{target} ({100 * share:.0f}%)" for target, share in zip(targets.tolist(), sure, strict=True))
    return _picture(
        f"accumulated_{radius:g}".replace(".", "_").replace("-", "_").replace("+", "_"),
        [starts, moved_noise],
        title=f"Accumulated gradients, l2 {radius:g}",
        alt=f"Two rows of {len(starts)} images: noise, and the same after moving towards a class.",
        caption=f"Uniform noise, and the same after PGD of {rules.steps} steps towards a class, l2 {radius:g}. The class, "
        f"and how sure of it the model is at last: {pairs}.",
    )


def _picture(name: str, rows: list[torch.Tensor], **words: str) -> tuple[Picture, bytes]:
    from benchmark.evaluation.pictures import png

    data = png(rows)
    return Picture(file=f"{name}.png", sha256=files.sha256_bytes(data), **words), data


step = Pictures
