"""The study that every row trained here has without a file: `<row>-seeds`, its training repeated with other seeds."""

from __future__ import annotations

from benchmark.specs.study import MeasureSpec, Study
from benchmark.specs.submission import VariantOnTrack
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import Track

NAME = "seeds"
TRAININGS = 5
APGD_T_CLASSES = 4  # the targeted loss is not defined below


def seeds_study(track: Track, variant: str, settings: VariantOnTrack, first: int) -> Study:
    """Return a study of one cell, the row's own settings, and TRAININGS seeds from `first`, the row's own.

    It measures the numbers that order a board: clean accuracy, robust accuracy at every radius of the track, and
    certified accuracy if the row has a certificate. Robust means under APGD-CE and then APGD-T on the images left,
    AutoAttack's first two parts; only APGD-CE for fewer than APGD_T_CLASSES classes.
    """
    attack = "quick" if track.data.classes >= APGD_T_CLASSES else "apgd"
    measures = [MeasureSpec(measure="clean")]
    for threat in track.threats:
        spec = AttackSpec(attack=attack, norm=threat.norm, eps=threat.eps)
        measures.append(MeasureSpec(measure="attack", name=robust_label(threat), attack=spec))
    if settings.certificate and track.certified_radii:
        measures.append(MeasureSpec(measure="certified", radii=track.certified_radii))
    seeds = tuple(range(first, first + TRAININGS))
    tuned = settings.training is not None and settings.training.init_from is not None
    return Study(
        title="Trainings that differ in their seed alone",
        source=f"seeds {seeds[0]} to {seeds[-1]}",
        note=f"Seed {first} is the row's own. APGD is APGD-CE"
        + (", then APGD-T on what it left: AutoAttack's first two parts." if attack == "quick" else ".")
        + (" The row is fine-tuned: all seeds start from the same weights." if tuned else ""),
        track=track.name,
        variant=variant,
        seeds=seeds,
        measures=tuple(measures),
    )


def robust_label(threat: ThreatModel) -> str:
    """Return the study's name for its accuracy within `threat`, which is not AutoAttack's."""
    return f"APGD {threat.label}"


def study_name(variant: str) -> str:
    """Return the study's name within its submission. No file of a study has such a name: theirs have no '-'."""
    return f"{variant}-{NAME}"


def variant_of(study: str) -> str:
    """Return the variant whose trainings a study of this name repeats; "" for another kind of study."""
    variant, dash, kind = study.rpartition("-")
    return variant if dash and kind == NAME else ""
