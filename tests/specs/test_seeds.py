"""The study over a row's seeds: its trainings, its measures and its names."""

from __future__ import annotations

import pytest

from benchmark.specs import tracks
from benchmark.specs.seeds import seeds_study, study_name, variant_of
from benchmark.specs.study import publish_command, run_command
from benchmark.specs.submission import VariantOnTrack

RECIPE = {"objective": "standard", "epochs": 1, "batch_size": 2, "learning_rate": 0.1}


def settings(**more) -> VariantOnTrack:
    return VariantOnTrack.model_validate({"training": RECIPE, **more})


def test_it_measures_what_orders_a_board_from_the_rows_own_seed_on() -> None:
    study = seeds_study(tracks.load("digits"), "v", settings(certificate={"name": "local"}), first=3)
    assert study.seeds == (3, 4, 5, 6, 7)
    assert [cell.set for cell in study.grid()] == [{}]
    assert [m.label for m in study.measures] == ["clean", "APGD Linf 0.15", "APGD L2 0.5", "APGD L2 1", "certified"]
    assert {m.attack.attack for m in study.measures if m.attack} == {"quick"}
    assert study.measures[-1].radii == (0.1, 0.25, 0.5)
    assert "certified" not in [m.label for m in seeds_study(tracks.load("digits"), "v", settings(), 0).measures]


def test_its_note_names_the_attack_and_the_start_of_a_fine_tuned_row() -> None:
    study = seeds_study(tracks.load("reviews"), "v", settings(), 0)  # of two classes: no targeted attack
    assert [m.attack.attack for m in study.measures if m.attack] == ["apgd"]
    assert "APGD-T" not in study.note
    assert "fine-tuned" not in study.note
    tuned = settings(training=RECIPE | {"init_from": {"row": "Other-v"}})
    assert "all seeds start from the same weights" in seeds_study(tracks.load("digits"), "v", tuned, 0).note


@pytest.mark.parametrize(
    ("study", "track", "run", "publish"),
    [
        ("Sub-grid", "other", "Sub grid", "Sub --study grid"),
        ("Sub-v-seeds", "digits", "Sub-v seeds", "Sub-v --study seeds"),
        ("Sub-v-seeds", "other", "Sub-v seeds --track other", "Sub-v --study seeds --track other"),
    ],
)
def test_the_commands_name_its_owner_and_where_it_needs_one_its_track(study, track, run, publish) -> None:
    assert run_command(study, track) == f"rvb study {run}"
    assert publish_command(study, track) == f"rvb publish {publish}"
    variant, _, kind = study.removeprefix("Sub-").rpartition("-")
    assert variant_of(study.removeprefix("Sub-")) == (variant if kind == "seeds" else "")
    assert variant_of(study_name("linf")) == "linf"
    assert variant_of("seeds") == ""
