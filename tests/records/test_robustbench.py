"""RobustBench's published rows in and out: units, refusals, the board, and their own reader on what we write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import site_rows
import tiny_linear_row
import yaml
from tiny_record import record
from typer.testing import CliRunner

from benchmark.records.record import Record
from benchmark.records.robustbench import exported, read_board, read_row
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.threat import ThreatModel
from benchmark.specs.track import Track
from leaderboard import reading
from leaderboard.rank import rank

# the example of RobustBench's README, as its file stands
RICE = {
    "link": "https://arxiv.org/abs/2002.11569", "name": "Overfitting in adversarially robust deep learning",
    "authors": "Leslie Rice, Eric Wong, J. Zico Kolter", "additional_data": False, "number_forward_passes": 1,
    "dataset": "cifar10", "venue": "ICML 2020", "architecture": "WideResNet-34-20", "eps": "8/255", "clean_acc": "85.34",
    "reported": "58", "autoattack_acc": "53.42",
}  # fmt: skip


@pytest.fixture
def cifar() -> Track:
    return tracks.load("cifar10")


def put(folder: Path, name: str = "Rice2020Overfitting", norm: str = "Linf", **changes) -> Path:
    path = folder / "cifar10" / norm / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**RICE, **changes}))
    return path


def test_radii_are_fractions_or_decimals_and_anything_else_is_refused(tmp_path) -> None:
    texts = {"8/255": 8 / 255, "0.5": 0.5, 0.5: 0.5, " 4 / 255": 4 / 255, ".031": 0.031, "1e-2": 0.01, "1E-2/.5": 0.02}
    assert {text: read_row(put(tmp_path, eps=text), "cifar10").threat.eps for text in texts} == texts
    eps = [
        "8/0", "0", "eight", "", None, "-8/255", "8//255", "nan", "inf", "1/2/3", [8], True, "-8/-255", "8_0/255", "0_1",
    ]  # fmt: skip
    for name, refused in (
        ("eps", eps),
        ("autoattack_acc", ["101", "-1", "nan", "inf", "53,4", "", None, [53], True]),
        ("external", [True]),
    ):
        for text in refused:
            with pytest.raises(BenchmarkError, match=f"{name}: Input should be "):
                read_row(put(tmp_path, **{name: text}), "cifar10")


def test_a_published_row_is_read_in_our_units(tmp_path) -> None:
    row = read_row(put(tmp_path, external="50.10", unreliable=True, footnote="n."), "cifar10")
    assert (row.name, row.threat) == ("Rice2020Overfitting", ThreatModel(norm="Linf", eps=8 / 255))
    assert (row.clean, row.autoattack, row.external, row.robust) == pytest.approx((0.8534, 0.5342, 0.501, 0.501))
    assert row.unreliable
    assert row.source == "model_info/cifar10/Linf/Rice2020Overfitting.json"
    assert read_row(put(tmp_path, autoattack_acc="0.0", authors="", venue=""), "cifar10").robust == 0
    row = read_row(put(tmp_path, external=0, unreliable="False"), "cifar10")
    assert (row.external, row.robust, row.unreliable) == (0, 0, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clean_acc": "0.8534"}, "looks like a fraction; RobustBench writes percent"),
        ({"autoattack_acc": "85.35"}, "robust accuracy 0.8535 above clean accuracy 0.8534"),
        ({"eps": "8"}, "radii are in pixels in .0, 1., so 8/255 is 0.0314"),
        ({"architecture": None}, "architecture: "),
        ({"dataset": "cifar100"}, "is of data set 'cifar100', not cifar10"),
        ({"link": "javascript:alert(1)"}, "is no web address"),
        ({"authors": ["A"]}, "authors: "),
        *((text, "is no valid JSON") for text in ("{", "\x00", "")),
        ("[1]", "the file: Input should be"),
    ],
)  # fmt: skip
def test_a_broken_row_is_refused_with_one_line(tmp_path, changes, words) -> None:
    path = put(tmp_path, **(changes if isinstance(changes, dict) else {}))
    if isinstance(changes, str):
        path.write_text(changes)
    with pytest.raises(BenchmarkError, match=words) as error:
        read_row(path, "cifar10")
    assert str(error.value).startswith(f"{path}")


def test_rows_of_the_tracks_radii_alone_and_the_rest_named(tmp_path, cifar) -> None:
    put(tmp_path)
    put(tmp_path, "Six2020Digits", eps="0.0313725")
    put(tmp_path, "Zhang2019Theoretically", eps="0.031")  # as published: near, but another radius
    put(tmp_path, "Broken2020Row", clean_acc="85,34")
    put(tmp_path, "Engstrom2019Robustness", "L2", eps="0.5")
    board, left_out = read_board(tmp_path, cifar)
    assert [row.name for row in board.rows] == ["Engstrom2019Robustness", "Rice2020Overfitting", "Six2020Digits"]
    assert [line.partition("Linf/")[2] for line in left_out] == [
        "Broken2020Row.json: clean_acc: Input should be a valid number, unable to parse string as a number; mend it, or take "
        "it out",
        "Zhang2019Theoretically.json: Linf 0.031 is none of the track's radii",
    ]
    with pytest.raises(BenchmarkError, match="says no `robustbench` data set"):
        read_board(tmp_path, tracks.load("digits"))
    with pytest.raises(BenchmarkError, match="holds no cifar10/L2 or Linf"):
        read_board(tmp_path / "cifar10", cifar)


def test_the_board_shows_them_as_claimed_and_ranks_none(tmp_path, cifar) -> None:
    put(tmp_path, name="Hostile<b>", external="50.1", footnote="<script>", link="")
    board, _ = read_board(tmp_path, cifar)
    (tmp_path / "claimed").mkdir()
    (tmp_path / "claimed" / "robustbench.json").write_text(board.model_dump_json())
    track = tracks.load("digits")
    elsewhere = reading.read_claimed(tmp_path / "claimed")
    site_rows.render(tmp_path / "site", track, rank([], track), tmp_path, claimed=elsewhere)
    index = (tmp_path / "site" / "index.html").read_text()
    claimed = index.partition("Claimed elsewhere: RobustBench")[2]
    assert "Hostile" not in index.partition("Claimed elsewhere")[0]
    for shown in (
        "Hostile&lt;b&gt;", ">85.34<", ">50.10<small>AutoAttack 53.42</small>", "<td>claimed</td>",
        "model_info/cifar10/Linf/Hostile",
    ):  # fmt: skip
        assert shown in claimed
    assert "<script>" not in claimed.partition("Radii are in pixels")[0]
    (tmp_path / "claimed" / "robustbench.json").write_text('{"board": "RobustBench"}')
    with pytest.raises(BenchmarkError, match=r"robustbench\.json: url: Field required; import it again"):
        reading.read_claimed(tmp_path / "claimed")


def attacked(autoattack: int, robust: int) -> Record:
    made = record("Tiny2026Net", robust, 30, title="A net").model_dump()
    made["robust"][0]["threat"]["eps"] = 8 / 255
    spec = {"attack": "autoattack", "norm": "Linf", "eps": 8 / 255}
    shares = {"value": autoattack / 100, "low": 0, "high": 1, "count": autoattack, "n": 100}
    made["attacks"] = [{"id": "autoattack", "suite": "standard", "spec": spec, "accuracy": shares, "remaining": {}}]
    made["claims"] = [{"track": "digits", "metric": "robust Linf 0.0313725", "value": 0.58, "source": "T"}]
    made["paper"]["url"] = "https://example.org/paper"
    return Record.model_validate(made)


def written_row(made: Record, track: Track, folder: Path) -> Path:
    """Where RobustBench has it."""
    path = folder / "cifar10/Linf/Tiny2026Net_v.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(exported(made, track, ThreatModel(norm="Linf", eps=8 / 255))))
    return path


@pytest.mark.parametrize(("alone", "least"), [(53, 53), (53, 50)])
def test_what_we_write_we_read_back(tmp_path, cifar, alone, least) -> None:
    path = written_row(attacked(alone, least), cifar, tmp_path)
    written = json.loads(path.read_text())
    assert (written["eps"], written["clean_acc"], written["reported"]) == ("8/255", "97.0", "58.0")
    assert "rebuilt, track digits version 1, 100 test images" in written["footnote"]
    row = read_row(path, "cifar10")
    assert (row.clean, row.autoattack, row.robust) == (0.97, alone / 100, least / 100)
    assert row.external == (least / 100 if least < alone else None)
    with pytest.raises(BenchmarkError, match=r"not attacked by AutoAttack at L2 0\.5, but at Linf 0\.0313725"):
        exported(attacked(53, 53), cifar, ThreatModel(norm="L2", eps=0.5))


def test_imported_rows_reach_the_board_through_the_pipeline(linear_new, tmp_path) -> None:
    from benchmark.commands.main import app
    from benchmark.pipeline import generate

    Path("benchmark/tracks/tiny.yaml").write_text(tiny_linear_row.TRACK + "robustbench: cifar10\n")
    put(tmp_path / "clone", "Engstrom2019Robustness", "L2", eps="0.5")
    put(tmp_path / "clone", "Ding2020MMA", "L2", eps="128/255")
    board = yaml.safe_load(generate.generate()[generate.board_file("tiny")])["stages"]["leaderboard"]
    assert "leaderboard/claimed/tiny" not in board["deps"]
    result = CliRunner().invoke(app, ["import-robustbench", str(tmp_path / "clone"), "--track", "tiny"])
    assert result.exit_code == 0, result.exception
    assert "Ding2020MMA.json: L2 0.501961 is none of the track's radii" in result.output.replace("\n", "")
    board = yaml.safe_load(generate.generate()[generate.board_file("tiny")])["stages"]["leaderboard"]
    assert "leaderboard/claimed/tiny" in board["deps"]
    (read,) = reading.read_claimed(Path("leaderboard/claimed/tiny"))
    assert [row.name for row in read.rows] == ["Engstrom2019Robustness"]


@pytest.mark.slow  # robustbench takes seconds to import
def test_robustbenchs_own_readers_take_what_we_write(tmp_path, cifar, monkeypatch, capsys) -> None:
    import dataclasses

    from robustbench import utils
    from robustbench.model_zoo.enums import BenchmarkDataset
    from robustbench.model_zoo.enums import ThreatModel as Theirs

    path = written_row(attacked(53, 50), cifar, tmp_path / "model_info")
    known = {field.name for field in dataclasses.fields(utils.ModelInfo)} | {"external", "unreliable"}
    assert json.loads(path.read_text()).keys() <= known
    monkeypatch.chdir(tmp_path)
    ours = {BenchmarkDataset.cifar_10: {Theirs.Linf: {"Tiny2026Net_v": {}}}}
    monkeypatch.setattr(utils, "all_models", ours)
    utils.list_available_models("cifar10", "Linf")
    assert (
        "**Tiny2026Net_v**</sub> | <sub>*[P](https://example.org/paper)*</sub> | <sub>97.00%</sub> | <sub>50.00%</sub>"
        in (capsys.readouterr().out.replace("<sup>", "").replace("</sup>", ""))
    )
    assert "97.0 & 50.0 & N & A net" in utils.get_leaderboard_latex("cifar10", "Linf", sort_by="clean_acc")
    # and its writer's merge keeps to the same layout
    utils.update_json(BenchmarkDataset.cifar_10, Theirs.Linf, "Tiny2026Net_v", 0.9, 0.4, "8/255")
    assert read_row(Path("model_info/cifar10/Linf/Tiny2026Net_v.json"), "cifar10").autoattack == 0.4
