"""What stages take: the file's entries, from the general to the particular, and what is wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_linear_row
from edited_file import edit

from benchmark.loading.rows import load_row
from benchmark.pipeline.cluster import resources
from benchmark.pipeline.cluster.resources import Resources
from benchmark.runtime.errors import BenchmarkError
from benchmark.stages import catalogue

ROW, SUBMISSION = "Tiny2026Linear-small", "Tiny2026Linear"


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tiny_linear_row.new(tmp_path / "project").root)


def takes(stage: str, text: str = "") -> Resources:
    Path("resources.yaml").write_text(text)
    (one,) = (one for one in catalogue.plan(load_row("tiny", ROW)) if one.name == stage)
    return resources.resources_of(one, resources.read())


def test_without_a_file_a_stage_takes_a_core_and_where_params_say_so_a_gpu() -> None:
    (one,) = (one for one in catalogue.plan(load_row("tiny", ROW)) if one.name == "train")
    assert resources.resources_of(one, resources.read()) == Resources(cores=1, memory=2.0, gpus=0.0, minutes=720.0)
    edit("params.yaml", "device: cpu", "device: cuda")
    assert resources.resources_of(one, resources.read()).gpus == 1.0
    (last,) = (one for one in catalogue.plan(load_row("tiny", ROW)) if one.name == "collect")
    assert resources.resources_of(last, resources.read()).gpus == 0.0, "it computes nothing"


def test_a_training_that_processes_share_takes_a_core_or_a_gpu_for_each() -> None:
    edit("params.yaml", "device: cpu # cpu", "processes: 3\n  device: cpu # cpu")
    assert takes("train", "{}") == Resources(cores=3, memory=6)
    assert takes("attack-papers", "{}") == Resources(cores=1)
    edit("params.yaml", "device: cpu # cpu", "device: cuda # cpu")
    assert takes("train", "{}") == Resources(cores=3, memory=6, gpus=3.0)
    edit("params.yaml", "device: cuda # cpu", "device: cuda:1 # cpu")
    assert takes("train", "{}").gpus == 1, "all on the one that is named"


def test_the_particular_goes_before_the_general() -> None:
    text = f"""\
default: {{cores: 2, memory: 3}}
tracks:
  tiny: {{cores: 3, minutes: 10}}
  tiny/attack: {{cores: 4}}
  tiny/attack-papers: {{cores: 5, memory: 7}}
submissions:
  {SUBMISSION}: {{minutes: 20}}
  {ROW}/train: {{gpus: 0.5}}
"""
    assert takes("collect", text) == Resources(cores=3, memory=3, minutes=20)
    assert takes("attack-papers", text) == Resources(cores=5, memory=7, minutes=20)
    assert takes("train", text) == Resources(cores=3, memory=3, gpus=0.5, minutes=20)
    assert takes("attack-papers", text + f"  {ROW}: {{cores: 1}}\n").cores == 1, "the row before the track"
    assert takes("attack-papers", "tracks: {tiny/attack: {cores: 4}}").cores == 4
    assert takes("attack-papers", "tracks: {digits: {cores: 9}}").cores == 1, "another track's"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("default: {core: 2}", r"^resources\.yaml: unknown key 'default\.core'; did you mean 'cores'\?$"),
        ("tracks: {tiny: {cores: 0}}", r"^resources\.yaml: tracks\.tiny\.cores: .*greater than or equal to 1"),
        ("submissions: {x: {memory: much}}", r"^resources\.yaml: submissions\.x\.memory: "),
        ("default: {gpus: 1.5}", r"^resources\.yaml: default\.gpus: .*whole GPUs, or a share of one"),
        ("default: [", r"^resources\.yaml"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_line(text, words) -> None:
    Path("resources.yaml").write_text(text)
    with pytest.raises(BenchmarkError, match=words) as error:
        resources.read()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tracks: {tinny: {cores: 2}}", "no track is called 'tinny'"),
        (
            "submissions: {Tiny2026Linear-smal/train: {cores: 2}}",
            "no submission or row is called 'Tiny2026Linear-smal'",
        ),
        ("tracks: {tiny/atack: {cores: 2}}", "unknown stage 'atack'; did you mean 'attack'"),
    ],
)
def test_an_entry_of_what_does_not_exist_is_refused(text, words) -> None:
    Path("resources.yaml").write_text(text)
    with pytest.raises(BenchmarkError, match=words):
        resources.check_names(resources.read(), {"tiny"}, {ROW}, {SUBMISSION})


def test_entries_of_what_exists_are_taken() -> None:
    Path("resources.yaml").write_text(
        f"tracks: {{tiny: {{cores: 1}}, tiny/attack-papers: {{cores: 1}}}}\n"
        f"submissions: {{{SUBMISSION}/train: {{cores: 1}}, {ROW}: {{cores: 2}}}}\n"
    )
    declared = resources.read()
    resources.check_names(declared, {"tiny"}, {ROW}, {SUBMISSION})
    assert {*declared.tracks} == {"tiny", "tiny/attack-papers"}
    assert {*declared.submissions} == {f"{SUBMISSION}/train", ROW}


def test_resources_are_said_in_words() -> None:
    assert str(Resources()) == "1 core, 2 GiB"
    assert str(Resources(cores=4, memory=0.5, gpus=1)) == "4 cores, 0.5 GiB, 1 GPU"
    assert str(Resources(gpus=0.5)) == "1 core, 2 GiB, 0.5 GPUs"
