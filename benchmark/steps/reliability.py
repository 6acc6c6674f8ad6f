"""Step `reliability`: whether a row's attacks can be trusted. It compares probes of the model with the suites' results."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.runtime import files
from benchmark.specs.rows import Row
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject, ask_again

if TYPE_CHECKING:
    from benchmark.evaluation.indicators import ProbeResults, Ran
    from benchmark.records.reliability import FailureIndicator


AMONG = 32  # images of an attack, broken and standing ones, among the questions of this step


class Reliability(EvaluationStep):
    """Columns `probe *`, and `probed <norm> <eps>`: images that the probes broke within a ball are lost."""

    refusal = "track {track} declares no attack in a ball larger than a point; there is nothing to probe"
    attacks = True

    @classmethod
    def applies(cls, row: Row) -> bool:
        return any(threat.eps for threat in row.track.threats)

    @property
    def reads(self) -> list[Path]:
        return [*super().reads, *(folder for folder in self.earlier if folder.name.startswith("attack-"))]

    @property
    def rules(self) -> dict[str, Any]:
        threats = [threat.model_dump(mode="json") for threat in self.row.track.threats]
        return {"threats": threats, "division": self.row.submission.division}

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        from benchmark.evaluation import indicators
        from benchmark.evaluation.probes import first_threat, probed_within, radii
        from benchmark.records.reliability import Reliability as Result

        threat = first_threat(work.row.track.threats)
        assert threat is not None  # the step applies
        probes = _measured(work, subject, threat)
        balls = radii(threat, work.row.track.data.shape)
        signals = indicators.failure_indicators(probes, threat, balls) + _asked_otherwise(work, subject, threat)
        signals += _as_attacked(work, subject)
        ran, objections = _suites(work)
        right = indicators.correct(probes)
        if right.any():
            signals += indicators.suite_indicators(ran, right.numpy(), objections)
            new = indicators.probes_find_nothing_new(ran, (right & probed_within(probes, threat)).numpy(), threat)
            signals += [new] if new else []
        result = Result(
            threat=threat,
            signals=tuple(signals),
            gradients=indicators.gradient_norms(probes),
            steps=indicators.step_curve(probes),
            radii=indicators.radius_curve(probes, balls),
        )
        columns = {f"probe {name}": values for name, values in probes.items()}
        columns |= {f"probed {ball.exact}": probes[f"radius {ball.eps:g}"] <= 0 for ball in balls}
        columns[f"probed {threat.exact}"] = probed_within(probes, threat)
        return Outcome(
            columns,
            {"reliability": result.model_dump(mode="json")},
            summary=f"{len(result.failing)} of {len(result.signals)} signals speak against the attacks",
        )


def _asked_otherwise(work: Work, subject: Subject, threat: ThreatModel) -> list[FailureIndicator]:
    from benchmark.attacks.gradients import attackable
    from benchmark.data.tensors import unseen_images
    from benchmark.evaluation import asking

    row, size, seed = work.row, subject.batch_size, work.row.track.evaluation.seed
    is_open, model = row.submission.division == "open", subject.model
    signals = [asking.depends_on_asking(asking.answers(model, subject.images, size, seed), row.name, is_open)]
    images, labels = (tensor[: len(subject.labels)] for tensor in unseen_images(row, subject.device))
    if len(labels):
        attacked = attackable(model, *subject.first_batch)[0] if is_open else model
        seen = subject.images, subject.labels
        signals += asking.knows_the_images(attacked, seen, (images, labels), threat, batch_size=size, seed=seed)
    work.say("asked in other batches, and about unseen images")
    return signals


def _as_attacked(work: Work, subject: Subject) -> list[FailureIndicator]:
    """Compare the answers here with those in the suites' steps: where each attack ended, and where PGD moved what it left.

    A model may know which step asks it. So some of these images are then asked again among the questions of this step, where
    it cannot tell them from those of the probes. Return a warning if gradients here or there are not those of the answers.
    Raise a BenchmarkError if an answer differs in the closed division.
    """
    import torch
    from safetensors.torch import load_file

    from benchmark.attacks.prediction import logits
    from benchmark.evaluation.asked_again import compare
    from benchmark.evaluation.indicators import true_gradients

    if subject.asked is None or work.row.submission.division == "open":
        return []
    images, answers, gradients, dtype = [], [], {}, subject.asked.dtype
    generator = torch.Generator().manual_seed(secrets.randbits(63))  # unknown to the model
    for folder in [folder for folder in work.reads if folder.name.startswith("attack-")]:
        kept, noted = folder / "images.safetensors", folder / "answered.safetensors"
        attacked = load_file(kept if kept.exists() else folder / "adversarial.safetensors")
        answered = load_file(noted) if noted.exists() else {}  # none of a suite that ran without a sandbox
        for attack in [name for name in attacked if name in answered]:
            if f"{attack}:gradients" in answered:
                gradients[attack] = tuple(answered[f"{attack}:gradients"].tolist())
            pairs = [(attacked[attack], answered[attack])]
            if f"{attack}:afresh" in answered:
                pairs.append((answered[f"{attack}:afresh"], answered[f"{attack}:afresh logits"]))
            for moved, before in pairs:
                after = logits(subject.model, moved.to(subject.device), subject.batch_size).cpu()
                compare(before.to(dtype), after.to(dtype), work.row.name, f"step {work.name} than in {folder.name}")
                chosen = torch.randperm(len(moved), generator=generator)[:AMONG]
                images.append(moved[chosen])
                answers.append(after[chosen])
    final = (torch.cat(images), torch.cat(answers)) if images else None
    gradients[work.name] = ask_again(work, subject, final=final)[1]
    signal = true_gradients(gradients)
    return [signal] if signal else []


def _measured(work: Work, subject: Subject, threat: ThreatModel) -> ProbeResults:
    """Return the probes' results, resumed after a kill."""
    from safetensors.torch import load_file, save

    from benchmark.attacks.gradients import attackable
    from benchmark.evaluation.probes import measure

    model = subject.model
    if work.row.submission.division == "open":
        model, _ = attackable(model, *subject.first_batch)
    checkpoint = work.scratch / "checkpoint.safetensors"

    def keep(name: str, results: ProbeResults) -> None:
        files.write(checkpoint, save({key: tensor.contiguous() for key, tensor in results.items()}))
        work.say(f"probed {name}")

    return measure(
        model,
        subject.images,
        subject.labels,
        threat,
        batch_size=subject.batch_size,
        seed=work.row.track.evaluation.seed,
        done=load_file(checkpoint) if checkpoint.exists() else {},
        keep=keep,
    )


def _suites(work: Work) -> tuple[list[Ran], tuple[str, ...]]:
    """Return the suites' results, and the warnings of AutoAttack's checks."""
    import pyarrow.parquet as pq

    from benchmark.evaluation.indicators import Ran
    from benchmark.records.evidence import column

    ran: list[Ran] = []
    warnings: list[str] = []
    for folder in [folder for folder in work.reads if folder.name.startswith("attack-")]:
        evidence, fields = pq.read_table(folder / "evidence.parquet"), files.read_json(folder / "fields.json")
        for attack in fields["attacks"]:
            spec = AttackSpec.model_validate(attack["spec"])
            broke = column(evidence, f"{spec.id}:success")
            ran.append(Ran(spec, broke, attack["remaining"], tuple(attack["warnings"])))
        reasons = fields["division_reasons"]
        warnings += [r.removeprefix("AutoAttack: ") for r in reasons if r.startswith("AutoAttack: ")]
    return ran, tuple(dict.fromkeys(warnings))


step = Reliability
