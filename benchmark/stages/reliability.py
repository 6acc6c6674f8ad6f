"""Stage `reliability`: can its attacks be trusted? `python -m benchmark.stages.reliability <track> <submission> <variant>`"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save

from benchmark.loading.rows import Entry, entry
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.reliability import compare, indicators
from benchmark.reliability.probes import ProbeResults, first_threat, measure, probed_within, radii
from benchmark.results.attack import ModelFacts
from benchmark.results.reliability import Reliability
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.base import to_json
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.stages.base import Clock, evaluation_inputs, finish
from benchmark.verdicts.prediction import predict


def reliability_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/reliability: probes.parquet and reliability.json.

    Raises:
        BenchmarkError: the track attacks nothing, or a suite's stage has not run.
    """
    row = entry(track, submission, variant)
    threat = first_threat(row.track.threats)
    if threat is None:
        raise BenchmarkError(
            f"track {track} declares no attack in a ball larger than a point; there is nothing to judge"
        )
    device = set_up(run_settings().evaluate.device)
    rules = {str(path): files.sha256_file(path) for path in _suite_files(row)}
    inputs = evaluation_inputs(row, "reliability", [threat.model_dump(), rules])
    with scratch.locked(f"{track}/{row.row}/reliability", inputs, row.folder / "reliability") as folder:
        if folder is not None:
            _judge_row(row, threat, folder, device, inputs["code"])


def _suite_files(row: Entry) -> list[Path]:
    """What the attack stages left that this one reads; a BenchmarkError when one is missing."""
    stages = [row.folder / stage for stage in row.stages() if stage.startswith("attack-")]
    paths = [stage / name for stage in stages for name in ("verdicts.parquet", "attacks.json", "model.json")]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise BenchmarkError(f"{missing[0]} is missing; run `rvb repro` to build it")
    return paths


def _judge_row(row: Entry, threat: ThreatModel, folder: Path, device: torch.device, code_digest: str) -> None:
    clock = Clock(folder)
    images, labels = evaluation_images(row, device)
    model, batch_size = trained_model(row, device), row.track.evaluation.batch_size
    found = _measured(row, model, images, labels, threat, folder / "checkpoint.safetensors", clock)
    balls = radii(threat, row.track.data.shape)
    signals = indicators.failure_indicators(found, threat, balls)
    ran, objections = _ran(row)
    right = indicators.correct(found)
    if right.any():
        signals += compare.failure_indicators(ran, right.numpy(), objections)
        new = compare.probes_find_nothing_new(ran, (right & probed_within(found, threat)).numpy(), threat)
        signals += [new] if new else []
    result = Reliability(
        threat=threat,
        signals=tuple(signals),
        gradients=indicators.gradient_norms(found),
        steps=indicators.step_curve(found),
        radii=indicators.radius_curve(found, balls),
    )
    clean = predict(model, images, labels, batch_size)
    columns = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
    columns |= {f"probe {name}": values for name, values in found.items()}
    columns |= {f"probed {ball.norm} {ball.eps:g}": found[f"radius {ball.eps:g}"] <= 0 for ball in balls}
    columns[f"probed {threat.norm} {threat.eps:g}"] = probed_within(found, threat)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    pq.write_table(pa.table({name: tensor.cpu().numpy() for name, tensor in columns.items()}), out / "probes.parquet")
    files.write(out / "reliability.json", to_json(result))
    finish(row, "reliability", out, code_digest, clock)
    print(f"{row.row}: {len(result.failing)} of {len(result.signals)} signals speak against the attacks")


def _measured(
    row: Entry,
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    threat: ThreatModel,
    checkpoint: Path,
    clock: Clock,
) -> ProbeResults:
    """The probes, resumed from `checkpoint`."""

    def keep(name: str, found: ProbeResults) -> None:
        files.write(checkpoint, save({key: tensor.contiguous() for key, tensor in found.items()}))
        clock.lap()
        print(f"{row.row}: probed {name}", flush=True)

    done = load_file(checkpoint) if checkpoint.exists() else {}
    seed, batch_size = row.track.evaluation.seed, row.track.evaluation.batch_size
    return measure(model, images, labels, threat, batch_size=batch_size, seed=seed, done=done, keep=keep)


def _ran(row: Entry) -> tuple[list[compare.Ran], tuple[str, ...]]:
    """What the suites found, and what AutoAttack's checks said of the model."""
    ran: list[compare.Ran] = []
    said: list[str] = []
    for stage in [stage for stage in row.stages() if stage.startswith("attack-")]:
        verdicts = pq.read_table(row.folder / stage / "verdicts.parquet")
        for attack in files.read_json(row.folder / stage / "attacks.json"):
            spec = AttackSpec.model_validate(attack["spec"])
            broke = verdicts[f"{spec.id}:success"].to_numpy()
            ran.append(compare.Ran(spec, broke, attack["remaining"], tuple(attack["warnings"])))
        facts = ModelFacts.model_validate(files.read_json(row.folder / stage / "model.json"))
        said += [r.removeprefix("AutoAttack: ") for r in facts.division_reasons if r.startswith("AutoAttack: ")]
    return ran, tuple(dict.fromkeys(said))


if __name__ == "__main__":
    errors.run(lambda: reliability_row(*sys.argv[1:]))
