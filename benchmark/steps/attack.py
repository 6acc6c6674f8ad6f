"""Step `attack-<suite>`: one suite of attacks on one row. Its images are kept, so that anyone can replay them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs import methods
from benchmark.specs.rows import Row
from benchmark.specs.run_settings import run_settings
from benchmark.specs.threat import AttackSpec, passes_for_autoattack
from benchmark.specs.track import ADAPTIVE
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject, ask_again

if TYPE_CHECKING:
    import torch

    from benchmark.attacks.prediction import Predictions
    from benchmark.evaluation.run_attack import AttackState


ASKED_AGAIN = 256  # images per attack


class Attack(EvaluationStep):
    """One step for each suite that counts for the row: those of the track, and `adaptive`, contributed against the row."""

    declared_in = "suites"
    attacks = searches = several = True

    @classmethod
    def names(cls, row: Row) -> list[str]:
        return [f"attack-{suite}" for suite in row.suites]

    @classmethod
    def refuse(cls, row: Row, name: str) -> BenchmarkError:
        suite = name.partition("-")[2]
        if not suite:
            return BenchmarkError("name the suite: attack-<suite>, such as attack-standard")
        words = f"track {row.track.name} has no suite {suite!r}{near_miss(suite, row.suites)}"
        if suite in row.track.development:
            words = f"suite {suite} is for development and never published; run `rvb attack {row.name} --suite {suite}`"
        elif suite == ADAPTIVE:
            words = f"{row.name} declares no adaptive attack on {row.track.name}; see docs/bring-an-attack.md"
        return BenchmarkError(words)

    @property
    def specs(self) -> tuple[AttackSpec, ...]:
        return self.row.suites[self.what]

    @property
    def rules(self) -> dict[str, Any]:
        return {
            "suite": [spec.model_dump(mode="json") for spec in self.specs],
            "engine": run_settings().evaluate.engine,
            "division": self.row.submission.division,
            # the Record keeps the images of the track's first suite, and of contributed attacks
            "kept": self.what in [*self.row.track.suites][:1] or self.what not in self.row.track.suites,
        }

    @property
    def components(self) -> list[Path]:
        own = self.row.submission.name if self.what == ADAPTIVE else ""
        attacks = {methods.attack_file(spec.attack, own) for spec in self.specs}
        return [*self.row.method_files, *sorted(attacks)]

    def companion(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the function that finds attacks contributed by the row's submission."""
        from benchmark.sandbox.attack import contributed_attacks

        names = [spec.attack for spec in self.specs] if self.what == ADAPTIVE else []
        return contributed_attacks(self.row, names, device)

    @property
    def spares(self) -> int:
        return 2 * len(self.specs) + 1  # for each attack and its questions, and one for the other questions

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import torch
        from safetensors.torch import save

        from benchmark.attacks.ball import distances
        from benchmark.attacks.engine.slots import fuller
        from benchmark.attacks.prediction import Predictions, logits, margins
        from benchmark.evaluation.division import inspect
        from benchmark.evaluation.evidence import proportion
        from benchmark.evaluation.indicators import true_gradients
        from benchmark.evaluation.run_attack import run_suite
        from benchmark.records.accuracy import AttackResult

        row, size = work.row, subject.batch_size
        is_open = row.submission.division == "open"
        facts = inspect(subject.model, subject.images[:size], subject.labels[:size], row.submission)
        clean, wide = subject.clean, subject.together or size
        if not (subject.together or is_open):  # an open model, which draws noise call by call, is asked in batches
            wide = fuller(size, subject.images, facts.flops)
        columns: dict[str, torch.Tensor] = {}
        adversarial: dict[str, torch.Tensor] = {}
        answered: dict[str, torch.Tensor] = {}  # for the step `reliability`
        results = []
        for spec, state, after in run_suite(
            subject.model, subject.images, subject.labels, self.specs, batch_size=size, folder=work.blocks,
            engine=work.settings["engine"], report=work.say, contributed=subject.companion, open_division=is_open,
            together=subject.together, wide=wide,
        ):  # fmt: skip
            with subject.spares.pop()() if subject.asked else nullcontext() as other:
                after = _attacked_afresh(work, subject, other, spec, state, after, answered)
            final = None
            if subject.asked and not is_open:  # in the batches of `after`, so that the answers are the same
                answers = logits(subject.model, state.adversarial, size)
                after = Predictions(answers.argmax(1), margins(answers, subject.labels))
                final = state.adversarial, answers
                answered[spec.id] = answers
            # in another process: an attack's gradients tell a model the labels
            lost, compared = ask_again(work, subject, ASKED_AGAIN, final=final)
            state.robust &= ~lost if lost is not None else True
            if true_gradients({spec.id: compared}):  # else nothing is noted, since the sample differs from run to run
                answered[f"{spec.id}:gradients"] = torch.tensor(compared)
            # a random model may answer differently the second time: an image that it once got wrong in the ball is lost
            robust = clean.correct & state.robust & after.correct
            moved = distances(state.adversarial, subject.images)
            columns |= {
                f"{spec.id}:success": clean.correct & ~robust,
                f"{spec.id}:prediction": after.prediction,
                f"{spec.id}:margin": after.margin,
                f"{spec.id}:linf": moved["Linf"],
                f"{spec.id}:l2": moved["L2"],
            }
            adversarial[spec.id] = state.adversarial.cpu().contiguous()
            result = AttackResult(
                id=spec.id, suite=self.what, spec=spec, engine=state.engine, accuracy=proportion(robust.cpu().numpy()),
                remaining=state.remaining, warnings=tuple(state.warnings),
            )  # fmt: skip
            results.append(result.model_dump(mode="json"))
            work.say(f"{spec.id}: {int(robust.sum())} of {len(subject.labels)} robust")
        images = save(adversarial)
        fields = {
            **facts.model_dump(mode="json"),
            "attacks": results,
            "sha256": {f"adversarial images {self.what}": files.sha256_bytes(images)},
        }
        kept = work.settings["kept"]
        files_ = {} if kept else {"adversarial.safetensors": images}
        if answered:
            files_["answered.safetensors"] = save({name: tensor.cpu().contiguous() for name, tensor in answered.items()})
        return Outcome(columns, fields, images=adversarial if kept else {}, files=files_)


def _attacked_afresh(
    work: Work,
    subject: Subject,
    other: torch.nn.Module | None,
    spec: AttackSpec,
    state: AttackState,
    after: Predictions,
    answered: dict[str, torch.Tensor],
) -> Predictions:
    """Attack the images that are still classified correctly in the process of `other`, which never saw them clean.

    Return the predictions on the images that `state` then holds. An image that AutoAttack left and this attack breaks
    counts as broken. Another attack may be weaker, and its number stays its own. A closed model's logits where the attack
    ended are noted in `answered`.

    Raises:
        BenchmarkError: in the closed division, `other` answers differently from the attacked model.
    """
    from benchmark.attacks.prediction import logits, margins, predict
    from benchmark.evaluation.asked_again import attacked_afresh, compare

    standing = (subject.clean.correct & state.robust & after.correct).nonzero()[:, 0]
    if other is None or not len(standing) or not spec.threat.eps:
        return after
    is_open, labels = work.row.submission.division == "open", subject.labels[standing]
    moved, answers = attacked_afresh(
        other, subject.images[standing], labels, spec.threat,
        seed=spec.seed, batch_size=subject.batch_size, is_open=is_open,
    )  # fmt: skip
    if not is_open:
        assert subject.asked is not None
        own = logits(subject.model, moved, subject.batch_size)
        compare(own.to(subject.asked.dtype), answers.to(subject.asked.dtype), work.row.name)
        answered |= {f"{spec.id}:afresh": moved, f"{spec.id}:afresh logits": own}
    wrong = margins(answers, labels) <= 0
    if not wrong.any() or not passes_for_autoattack(spec.attack):
        return after
    broken = standing[wrong]
    state.adversarial[broken], state.robust[broken] = moved[wrong], False
    return predict(subject.model, state.adversarial, subject.labels, subject.batch_size)


step = Attack
