"""Step `attack-<suite>`: one suite of attacks on one row. Its images are kept, so that anyone can replay them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.loading import methods
from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.threat import AttackSpec
from benchmark.specs.track import ADAPTIVE
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject

if TYPE_CHECKING:
    import torch

    from benchmark.evaluation.run_attack import AttackState
    from benchmark.verdicts.prediction import Predictions


class Attack(EvaluationStep):
    """One name a suite that counts for the row: those of the track, and `adaptive`, brought against the row."""

    name = "attack"
    attacks = searches = True
    several = True

    def applies(self, row: Row) -> bool:
        return bool(row.suites)

    def names(self, row: Row) -> list[str]:
        return [f"attack-{suite}" for suite in row.suites]

    def refuse(self, row: Row, name: str) -> BenchmarkError:
        suite = _suite(name)
        if not suite:
            return BenchmarkError("name the suite: attack-<suite>, such as attack-standard")
        if suite in row.track.development:
            return BenchmarkError(
                f"suite {suite} is for development and never published; run `rvb attack {row.name} --suite {suite}`"
            )
        if suite == ADAPTIVE:
            return BenchmarkError(
                f"{row.name} declares no adaptive attack on {row.track.name}; see docs/bring-an-attack.md"
            )
        return BenchmarkError(f"track {row.track.name} has no suite {suite!r}{near_miss(suite, row.suites)}")

    def rules(self, row: Row, name: str) -> dict[str, Any]:
        specs = row.suites[_suite(name)]
        return {
            "suite": [spec.model_dump(mode="json") for spec in specs],
            "engine": run_settings().evaluate.engine,
            "division": row.submission.division,
            "kept": _kept(row, _suite(name)),
        }

    def components(self, row: Row, name: str) -> list[Path]:
        own = row.submission.name if _suite(name) == ADAPTIVE else ""
        return [
            *row.method_files,
            *sorted({methods.attack_file(spec.attack, own) for spec in row.suites[_suite(name)]}),
        ]

    def companion(self, row: Row, name: str, device: torch.device) -> AbstractContextManager[Any]:
        """What finds the attacks that the row's submission brings."""
        from benchmark.loading.walled_attack import brought_attacks

        names = [spec.attack for spec in row.suites[ADAPTIVE]] if _suite(name) == ADAPTIVE else []
        return brought_attacks(row, names, device)

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        from safetensors.torch import save

        from benchmark.evaluation.division import inspect
        from benchmark.evaluation.suite import run_suite
        from benchmark.runtime import files

        row, suite, size, report = work.row, _suite(work.name), subject.batch_size, _reporter(work)
        facts = inspect(subject.model, subject.images[:size], subject.labels[:size], row.submission)
        clean = subject.clean
        specs, engine = row.suites[suite], work.settings["engine"]
        columns: dict[str, torch.Tensor] = {}
        adversarial: dict[str, torch.Tensor] = {}
        results = []
        for spec, state, after in run_suite(
            subject.model, subject.images, subject.labels, specs, batch_size=size, folder=work.blocks,
            engine=engine, report=report, brought=subject.companion, open_division=row.submission.division == "open",
            together=subject.together,
        ):  # fmt: skip
            # a random model may answer otherwise the second time: an image that it once got wrong in the ball is lost
            robust = clean.correct & state.robust & after.correct
            columns |= _evidence(spec, clean.correct & ~robust, after, state.adversarial, subject.images)
            adversarial[spec.id] = state.adversarial.cpu().contiguous()
            results.append(_result(spec, suite, state, robust))
            report(f"{spec.id}: {int(robust.sum())} of {len(subject.labels)} robust")
        images = save(adversarial)
        fields = {
            **facts.model_dump(mode="json"),
            "attacks": results,
            "sha256": {f"adversarial images {suite}": files.sha256_bytes(images)},
        }
        kept = work.settings["kept"]
        files_ = {"adversarial.safetensors": images}
        return Outcome(columns, fields, images=adversarial if kept else {}, files={} if kept else files_)


def _reporter(work: Work) -> Callable[[str], None]:
    """Says on stderr what is running; the time so far is kept too."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True)

    def report(text: str) -> None:
        work.clock.lap()
        console.print(f"{work.row.name}: {text}", highlight=False)

    return report


def _kept(row: Row, suite: str) -> bool:
    """Whether its images stand in the Record: those of the track's first suite, and of attacks brought against the row."""
    return suite in [*row.track.suites][:1] or suite not in row.track.suites


def _suite(name: str) -> str:
    return name.partition("-")[2]


def _result(spec: AttackSpec, suite: str, state: AttackState, robust: torch.Tensor) -> dict[str, Any]:
    """What one attack left, as a Record has it."""
    from benchmark.evaluation.proportion import proportion
    from benchmark.results.attack import AttackResult

    return AttackResult(
        id=spec.id,
        suite=suite,
        spec=spec,
        engine=state.engine,
        accuracy=proportion(robust.cpu().numpy()),
        remaining=state.remaining,
        warnings=tuple(state.warnings),
    ).model_dump(mode="json")


def _evidence(
    spec: AttackSpec, success: torch.Tensor, after: Predictions, adversarial: torch.Tensor, images: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Per image: whether the attack succeeded on a rightly classified image, what it became, and how far it moved."""
    from benchmark.verdicts.ball import distances

    moved = distances(adversarial, images)
    return {
        f"{spec.id}:success": success,
        f"{spec.id}:prediction": after.prediction,
        f"{spec.id}:margin": after.margin,
        f"{spec.id}:linf": moved["Linf"],
        f"{spec.id}:l2": moved["L2"],
    }


step = Attack()
