"""What the penalty does, as statements put to the test over the seeds of a study.

Intervals are Welch's at 95% over seeds, each for itself, with no spread taken below one image.
"""

from __future__ import annotations

import pyarrow as pa

from benchmark.records.finding import Finding
from benchmark.records.study import StudyResult
from benchmark.records.study_table import contrast

PLAIN, PENALISED = "ViT", "SpecFormer"
NORM = "norms: mean"
CLEAN_LOSS = 0.01  # that counts as none


def standard_training(result: StudyResult, verdicts: pa.Table) -> list[Finding]:
    """Of each backbone: sigma halved, clean accuracy kept, and each attack's accuracy."""
    return _of_backbones(result, ("FGSM", "PGD-2", "AutoAttack"))


def adversarial_training(result: StudyResult, verdicts: pa.Table) -> list[Finding]:
    return _of_backbones(result, ("CW-20", "PGD-20", "AutoAttack"))


def _of_backbones(result: StudyResult, attacks: tuple[str, ...]) -> list[Finding]:
    found: list[Finding] = []
    cells = list(dict.fromkeys(run.cell for run in result.runs))
    for plain in (cell for cell in cells if cell.endswith(f", {PLAIN}")):
        backbone = plain.removesuffix(f", {PLAIN}")
        for penalised in (cell for cell in cells if cell.startswith(f"{backbone}, {PENALISED}")):
            found += _against(result, backbone, plain, penalised, attacks)
    return found


def _against(result: StudyResult, backbone: str, plain: str, penalised: str, attacks: tuple[str, ...]) -> list[Finding]:
    name = f"{backbone}{penalised.removeprefix(f'{backbone}, {PENALISED}')}"
    before, after = (_values(result, cell, NORM) for cell in (plain, penalised))
    found = [
        _finding(
            f"On {name}, the penalty at least halves attention's mean singular value",
            "half the plain ViT's mean sigma less SpecFormer's",
            (0.5, -1.0), (before, after), 0.0, 0.0,
        )
    ]  # fmt: skip
    before, after = (_values(result, cell, "clean") for cell in (plain, penalised))
    words = "SpecFormer's less the plain ViT's accuracy"
    floor = 1 / result.n
    found.append(
        _finding(
            f"On {name}, the penalty costs at most 1 point of clean accuracy", f"{words}, and 0.01",
            (-1.0, 1.0), (before, after), CLEAN_LOSS, floor,
        )
    )  # fmt: skip
    for attack in attacks:
        before, after = (_values(result, cell, attack) for cell in (plain, penalised))
        found.append(
            _finding(
                f"On {name}, the penalty makes the network more robust under {attack}", words,
                (-1.0, 1.0), (before, after), 0.0, floor,
            )
        )  # fmt: skip
    return [finding for finding in found if finding is not None]


def _finding(
    statement: str,
    statistic: str,
    shares: tuple[float, float],
    samples: tuple[list[float], list[float]],
    offset: float,
    floor: float,
) -> Finding | None:
    """None where a side has one seed alone."""
    difference = contrast(shares, samples, 0.05, floor)
    if difference is None:
        return None
    interval = (difference.estimate + offset, difference.low + offset, difference.high + offset)
    seeds = " and ".join(str(len(sample)) for sample in samples)
    return Finding.of(statement, statistic, f"{seeds} seeds, Welch", interval)


def _values(result: StudyResult, cell: str, label: str) -> list[float]:
    found = [run.values[label] for run in result.runs if run.cell == cell and label in run.values]
    return [float(value) for value in found if isinstance(value, int | float)]
