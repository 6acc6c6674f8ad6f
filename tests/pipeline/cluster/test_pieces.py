"""Large stages as parts before the stage that takes them up."""

from __future__ import annotations

from benchmark.loading.rows import load_row
from benchmark.pipeline import graph
from benchmark.pipeline.cluster import orders, pieces
from benchmark.pipeline.cluster.orders import Order
from benchmark.pipeline.cluster.resources import Resources

TRACK, ROW = "cifar10_jpeg", "Havens2024LoFAST-wide_margin"  # 1,000 images in batches of 200, of which 200 are attacked
HERE = f"pipelines/{TRACK}/{ROW}/dvc.yaml"


def cut(most: int | None):
    row = load_row(TRACK, ROW)
    tasks = graph.tasks_of(TRACK, [row], {f"pipelines/{TRACK}/_data/dvc.yaml:data"})
    needs = {key: Resources(images=most if key.endswith(":certify") else None) for key in tasks}
    return tasks, *pieces.cut(tasks, needs)


def test_without_images_every_stage_is_one_task() -> None:
    tasks, found, takes = cut(None)
    assert {*found} == {*tasks} == {*takes}
    assert all(found[key].after == tasks[key].after for key in tasks)
    assert all(not one.what.part and not one.what.parts for one in found.values())


def test_parts_wait_for_what_their_stage_waits_for_and_it_for_them() -> None:
    tasks, found, takes = cut(400)
    parts = [f"{HERE}:certify@0-400", f"{HERE}:certify@400-800", f"{HERE}:certify@800-1000"]
    assert {*found} - {*tasks} == {*parts}
    assert all(found[key].after == tasks[f"{HERE}:certify"].after == {f"{HERE}:train"} for key in parts)
    assert found[f"{HERE}:certify"].after == {f"{HERE}:train", *parts}
    assert found[f"{HERE}:certify"].what.parts == ("0-400", "400-800", "800-1000")
    assert [found[key].what.name for key in parts] == ["certify@0-400", "certify@400-800", "certify@800-1000"]
    assert sum(found[key].seconds for key in parts) == tasks[f"{HERE}:certify"].seconds
    assert found[parts[2]].seconds == tasks[f"{HERE}:certify"].seconds / 5
    assert not any(found[key].known for key in parts), "their stage never ran here"
    assert all(takes[key].images == 400 for key in parts)


def test_an_order_of_a_part_names_its_images_and_survives_the_journey(tmp_path, monkeypatch) -> None:
    (tmp_path / "certify.json").write_text("{}")
    monkeypatch.setattr(orders, "inputs_file", lambda track, row, stage: tmp_path / f"{stage}.json")
    _, found, _ = cut(400)
    key = f"{HERE}:certify@400-800"
    sent = orders.order(key, found[key].what, [f"{HERE}:train"])
    assert (sent.stage, sent.part, sent.stage_key) == ("certify", "400-800", f"{HERE}:certify")
    assert Order.from_json(sent.to_json()) == sent
    whole = orders.order(f"{HERE}:certify", found[f"{HERE}:certify"].what, [f"{HERE}:train"])
    assert (whole.part, whole.parts, whole.stage_key) == ("", ("0-400", "400-800", "800-1000"), f"{HERE}:certify")
