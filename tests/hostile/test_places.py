"""What training, studies and given weights do with the files that they may touch: none of it reaches another row's or a Record."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from stages import run_stage
from tiny_linear_row import METHOD, NAMES, ROW, SUBMISSION, record

from benchmark.runtime.errors import BenchmarkError
from benchmark.wall.confinement import PARTS, available

pytestmark = pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the wall")

OTHER = Path("work/tiny/Other-small/attack-papers")
# finds the folders that its process may write to, in the frames above it, and does `code` in each that it can
EVERYWHERE = """
def build(data):
    import os, pathlib, sys
    frame = sys._getframe()
    while frame is not None:
        for place in [v for v in frame.f_locals.values() if isinstance(v, pathlib.Path) and not v.suffix]:
            for place in (place.absolute(), place.absolute().parent):
                try:
{code}
                except OSError:
                    pass
        frame = frame.f_back
"""


def train(code: str) -> None:
    """Trains the row with a `build` that does this, with the other row's evidence beside it."""
    OTHER.mkdir(parents=True)
    (OTHER / "evidence.parquet").write_bytes(b"true verdicts")
    indented = "".join(f"                    {line}\n" for line in code.splitlines())
    text = METHOD.replace("def build(data):\n", EVERYWHERE.replace("{code}\n", indented).lstrip())
    Path("submissions/Tiny2026Linear/method.py").write_text(text)
    run_stage("train", *NAMES)


def test_a_record_that_training_plants_is_not_published(linear_row) -> None:
    run_stage("collect", *NAMES)
    honest = record()
    forged = honest.model_copy(update={"clean": honest.clean.model_copy(update={"count": 20, "value": 1.0})})
    Path("submissions/Tiny2026Linear/forged.json").write_text(forged.model_dump_json())
    train(
        "out = place / 'out/record'\nout.mkdir(parents=True, exist_ok=True)\n"
        "(out / 'record.json').write_bytes((pathlib.Path(__file__).parent / 'forged.json').read_bytes())"
    )
    for stage in ("attack-papers", "reliability", "attention", "collect"):
        run_stage(stage, *NAMES)
    assert record().clean == honest.clean


@pytest.mark.parametrize(
    ("link", "target"),
    [(".seconds.json.{os.getppid()}", "/evidence.parquet"), ("seconds.json", "/evidence.parquet"), ("out", "")],
)
def test_a_link_that_training_plants_leads_to_no_other_row(linear_row, link, target) -> None:
    train(f"os.symlink({str(OTHER.absolute()) + target!r}, place / f'{link}')")
    assert [path.name for path in OTHER.iterdir()] == ["evidence.parquet"]
    assert (OTHER / "evidence.parquet").read_bytes() == b"true verdicts"
    assert not (ROW / "train").is_symlink()


@pytest.mark.parametrize(
    "path",
    ["work/tiny/data/test.safetensors", "params.yaml", "/etc/passwd", "weights/../params.yaml", "~/.ssh/id", "weights"],
)
def test_a_submission_is_given_no_file_but_weights(linear_row, path) -> None:
    _ask_for(path)
    with pytest.raises(BenchmarkError, match="lies neither in weights/ nor in the submission's own folder"):
        run_stage("pretrained", *NAMES)


def test_nor_by_a_link_in_its_folder(linear_row) -> None:
    own, other = (Path("submissions", name, "given.pt") for name in ("Tiny2026Linear", "Other"))
    other.parent.mkdir()
    other.touch()
    _ask_for(str(other))
    with pytest.raises(BenchmarkError, match="lie outside submissions/Tiny2026Linear"):
        run_stage("pretrained", *NAMES)
    own.symlink_to(Path("work/tiny/data/test.safetensors").absolute())
    _ask_for(str(own))
    with pytest.raises(BenchmarkError, match=r"given.pt is a link that leads out of its submission"):
        run_stage("pretrained", *NAMES)


def _ask_for(path: str) -> None:
    asked = yaml.safe_load(SUBMISSION)
    asked["variants"]["small"]["tracks"]["tiny"] = {"weights": {"path": path}}
    Path("submissions/Tiny2026Linear/submission.yaml").write_text(yaml.safe_dump(asked))


STUDY = """\
title: A study
source: Table 1
track: tiny
variant: small
seeds: [0]
measures: [{measure: clean}]
"""


@pytest.mark.parametrize(
    "code",
    [
        "os.rename(place / 'out', place / 'away'), os.symlink({other!r}, place / 'out')",
        "os.symlink({other!r}, place / 'out/weights/0')",
        "(place / 'out/0-7').touch()",
        "(place / 'out/weights/0-7').mkdir()",
        "(place / 'out/.0-7').touch()",
    ],
    ids=["a link for all", "a link", "a name", "a folder's name", "a hidden name"],
)
def test_what_a_study_leaves_is_plain_files_of_known_names(linear_row, code) -> None:
    """Its code links to another row's folder after all results stand, or names a file after a label."""
    OTHER.mkdir(parents=True)
    folder = Path("submissions/Tiny2026Linear")
    (folder / "studies").mkdir()
    (folder / "studies/one.yaml").write_text(STUDY)
    hook = (
        "import os\nimport benchmark.studies.running as running\nhonest = running._run\n"
        "def run(measuring, place, *rest):\n    seconds = honest(measuring, place, *rest)\n"
        f"    {code.format(other=str(OTHER.absolute()))}\n    return seconds\nrunning._run = run\n"
    )
    (folder / "method.py").write_text(hook + METHOD)
    with pytest.raises(BenchmarkError, match="which is no plain file of a study's; nothing of it is kept"):
        run_stage("study", "tiny", "Tiny2026Linear-one")
    assert [*OTHER.iterdir()] == []


@pytest.mark.parametrize("name", ["data.bin", "inner/data.bin", "submission.yaml"])
def test_a_link_out_of_a_submission_is_refused_before_it_is_read(linear_row, name) -> None:
    place = Path("submissions/Tiny2026Linear", name)
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to("/dev/zero")
    with pytest.raises(BenchmarkError, match="is a link that leads out of its submission"):
        run_stage("attack-papers", *NAMES)
