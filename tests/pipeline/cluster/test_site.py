"""The checkout of a machine, and what is said when its warm process is not there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tar_archive import archive

from benchmark.pipeline.cluster import site
from benchmark.pipeline.cluster.site import Shipment, Site, ask, element, unpack

CONFIG = "[core]\n    remote = store\n"


FILES = {
    "benchmark/code.py": "A = 1\n",
    "submissions/One/method.py": "B = 2\n",
    "pipelines/tiny/row/dvc.yaml": "stages: {}\n",
    "pipelines/tiny/row/dvc.lock": "the coordinator's\n",
    "dvc.lock": "the coordinator's\n",
}


@pytest.fixture
def shipment(tmp_path) -> Shipment:
    return Shipment("c0ffee" * 7, archive(FILES), CONFIG, {"OMP_NUM_THREADS": "1"}, home=str(tmp_path / "checkouts"))


def test_the_files_of_the_commit_stand_in_a_folder_of_its_own(shipment, tmp_path, monkeypatch) -> None:
    folder = unpack(shipment)
    assert folder == tmp_path / "checkouts" / ("c0ffee" * 7)[:16]
    assert (folder / "benchmark/code.py").read_text() == "A = 1\n"
    assert (folder / ".dvc/config.local").read_text() == CONFIG
    assert not [*folder.rglob("dvc.lock")], "a checkout notes its own runs"
    monkeypatch.setenv("RVB_CHECKOUTS", str(tmp_path / "elsewhere"))
    assert Shipment("c0ffee", b"", "").folder() == tmp_path / "elsewhere" / "c0ffee"


def test_what_was_changed_or_removed_is_put_right_and_stray_code_goes(shipment) -> None:
    folder = unpack(shipment)
    (folder / "benchmark/code.py").write_text("A = 3\n")
    (folder / "submissions/One/method.py").unlink()
    strays = [folder / "benchmark/stray.py", folder / "submissions/Two/submission.yaml", folder / "leaderboard/x.html"]
    kept = {
        folder / "pipelines/tiny/row/dvc.lock": "what this checkout ran\n",
        folder / "work/tiny/row/train/model": "results\n",
        folder / ".dvc/cache/files/md5/00/1": "results\n",
        folder / "benchmark/__pycache__/code.pyc": "compiled\n",
    }
    for path, text in {**dict.fromkeys(strays, "C = 4\n"), **kept}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    unpack(shipment)
    assert (folder / "benchmark/code.py").read_text() == "A = 1\n"
    assert (folder / "submissions/One/method.py").read_text() == "B = 2\n"
    assert not [path for path in strays if path.exists()]
    assert {path: path.read_text() for path in kept} == kept


def test_files_that_are_as_they_should_be_are_left_alone(shipment) -> None:
    """Stages may be running there."""
    folder = unpack(shipment)
    before = {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".unpacking"
    }
    unpack(shipment)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_file_that_can_be_run_stays_one(tmp_path) -> None:
    sent = Shipment("abc", archive({"benchmark/run": "#!/bin/sh\n"}, 0o755), CONFIG, home=str(tmp_path))
    assert os.access(unpack(sent) / "benchmark/run", os.X_OK)


def test_another_remote_than_last_time_takes_its_place(shipment) -> None:
    unpack(shipment)
    other = Shipment(shipment.commit, shipment.archive, "[core]\n    remote = other\n", home=shipment.home)
    assert (unpack(other) / ".dvc/config.local").read_text() == other.config


SERVER = """\
import array, json, os, socket, sys
server = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = server.accept()
    request, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(12))
    asked = json.loads(request)
    streams = array.array("i", ancillary[0][2])
    text = open(asked["arguments"][0]).read()
    if asked["program"] == "answers":
        open(asked["arguments"][1], "w").write(text.upper())
        connection.sendall(b"0")
    elif asked["program"] == "fails":
        os.write(streams[1], b"Traceback\\nValueError: no such order\\n")
        connection.sendall(b"1")
    elif asked["program"] == "killed":
        connection.sendall(b"137")
    elif asked["program"] == "elsewhere":
        connection.sendall(b"elsewhere")
    elif asked["program"] == "ends":
        os._exit(3)
    for one in streams:
        os.close(one)
    connection.close()
"""


@pytest.fixture
def warm(tmp_path) -> tuple[str, str]:
    """A stand-in for the warm process, which answers as it is asked to."""
    place = str(tmp_path / "socket")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(place)
    server.listen(8)
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(server.fileno())], pass_fds=[server.fileno()])
    server.close()
    yield place, str(tmp_path)
    process.kill()
    process.wait()


def test_an_order_is_answered_and_leaves_no_file(warm) -> None:
    assert ask(warm, "answers", "text") == "TEXT"
    assert not [*(Path(warm[1]) / "work/scratch").iterdir()]


def test_what_a_fork_that_failed_said_last_is_raised(warm) -> None:
    with pytest.raises(RuntimeError, match=r"^ValueError: no such order$"):
        ask(warm, "fails", "")


def test_a_fork_that_was_killed_has_no_answer(warm) -> None:
    assert ask(warm, "killed", "") == ""


def test_a_changed_checkout_is_one_line(warm) -> None:
    with pytest.raises(RuntimeError, match=r"was changed while orders ran there"):
        ask(warm, "elsewhere", "")


def test_a_warm_process_that_ends_meanwhile_has_no_answer_and_later_nobody_listens(warm) -> None:
    assert ask(warm, "ends", "") == ""
    with pytest.raises(site.Unmanned):
        ask(warm, "answers", "")


def test_a_site_whose_warm_process_does_not_start_says_why(tmp_path) -> None:
    broken = {
        "benchmark/__init__.py": "",
        "benchmark/pipeline/__init__.py": "",
        "benchmark/pipeline/warm.py": "import no_torch\n",
    }
    found = Site(Shipment("abc", archive(broken), CONFIG, home=str(tmp_path)))
    with pytest.raises(
        RuntimeError, match=r"^the warm process on \S+ ended: ModuleNotFoundError: No module named 'no_torch'"
    ):
        found.ended()
    found.end()
    assert not Path(found.home).exists()


def test_a_site_ends_what_runs_there(tmp_path) -> None:
    waits = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('up', flush=True)\ntime.sleep(60)\n"
    files = {"benchmark/__init__.py": "", "benchmark/pipeline/__init__.py": "", "benchmark/pipeline/warm.py": waits}
    found = Site(Shipment("abc", archive(files), CONFIG, home=str(tmp_path)))
    while "up" not in Path(found.home, "log").read_text():
        assert found.process.poll() is None
    found.end()
    assert found.process.returncode == 0
    assert found.process.returncode != -signal.SIGKILL


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """The folder of a job array, with a worker that answers what it was asked."""
    worker = (
        "import json, sys\n"
        "order = json.loads(open(sys.argv[1]).read())\n"
        "answer = {'key': order['key'], 'entry': order['locks'], 'error': order.get('fails', ''), 'log': 'did it'}\n"
        "sys.exit(3) if order.get('dies') else open(sys.argv[2], 'w').write(json.dumps(answer))\n"
    )
    folder = tmp_path / "run"
    for name in ("orders", "answers", "logs"):
        (folder / name).mkdir(parents=True)
    packages = {
        "benchmark/__init__.py": "",
        "benchmark/pipeline/__init__.py": "",
        "benchmark/pipeline/cluster/__init__.py": "",
    }
    (folder / "files.tar").write_bytes(archive({**packages, "benchmark/pipeline/cluster/worker.py": worker}))
    about = {"commit": "abc", "config": CONFIG, "variables": {}}
    (folder / "shipment.json").write_text(json.dumps(about))
    monkeypatch.setenv("RVB_CHECKOUTS", str(tmp_path / "checkouts"))
    monkeypatch.setattr(site, "__file__", str(folder / "task.py"))
    return folder


def orders(run: Path, *found: dict[str, object] | None) -> None:
    texts = [json.dumps({"locks": {}, "reads": [], **one}) if one else None for one in found]
    (run / "orders/00-00-train.json").write_text(json.dumps(texts))


def test_an_element_carries_out_its_order_with_what_earlier_ones_answered(run, capfd) -> None:
    (run / "answers/earlier-0.json").write_text(json.dumps({"key": "a", "entry": {"cmd": "made a"}}))
    (run / "answers/failed-0.json").write_text(json.dumps({"key": "other", "error": "after x, which failed"}))
    orders(run, None, {"key": "b", "reads": ["a"]})
    assert element("00-00-train", "0") == 0, "this row has no such stage"
    assert element("00-00-train", "1") == 0
    answer = json.loads((run / "answers/00-00-train-1.json").read_text())
    assert answer["entry"] == {"a": {"cmd": "made a"}}
    assert "did it" in capfd.readouterr().out


def test_an_element_whose_earlier_stage_failed_says_after_which(run, capsys) -> None:
    (run / "answers/earlier-0.json").write_text(json.dumps({"key": "a", "error": "the model gives 11 classes"}))
    orders(run, {"key": "b", "reads": ["a"]})
    assert element("00-00-train", "0") == 1
    answer = json.loads((run / "answers/00-00-train-0.json").read_text())
    assert answer == {"key": "b", "error": "after a, which failed or did not run"}
    assert "after a" in capsys.readouterr().out


def test_an_element_ends_as_its_stage_did(run) -> None:
    orders(run, {"key": "b", "fails": "no"}, {"key": "c", "dies": True})
    assert element("00-00-train", "0") == 1
    assert element("00-00-train", "1") == 3
    assert not (run / "answers/00-00-train-1.json").exists(), "killed, it has no answer"
