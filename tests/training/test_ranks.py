"""Several processes that train one network: the steps of one process, identical every time, also after a kill."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from searched import few
from tiny_training import model, run, spec, stopping_after
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.channel import Channel
from benchmark.sandbox.confinement import Confinement
from benchmark.sandbox.process import Process
from benchmark.sandbox.training import _wait_for_first, exchange
from benchmark.specs import methods
from benchmark.training import standard
from benchmark.training.ranks import ALONE, Collective, Ranks, Tensors, add

EVERYTHING = {"optimizer": "sgd", "sam": 0.05, "ema": 0.5, "clip_norm": 1.0, "accumulation": 2, "batch_size": 9}
STANDARD = standard.objective(None)


def plain() -> nn.Module:
    """Draws nothing and keeps no statistics: shares of its batches add up."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 4))


def noisy() -> nn.Module:
    """Each rank has its own masks and statistics."""
    return nn.Sequential(model()[:-1], nn.BatchNorm1d(16), nn.Linear(16, 4))


def trained(make, rules, checkpoint, ranks: Ranks = ALONE, objective=STANDARD, **options) -> Answer:
    network = make()
    penalties = {"norms": methods.module("Hu2024SpecFormer", "spectral_norm").penalty(network, list, factor=0.01)}
    best, done = run(network, objective, rules, checkpoint, ranks=ranks, penalties=penalties, **options)
    return {"losses": done.losses, "scores": done.scores}, best


def same(one: Answer, other: Answer) -> bool:
    return one[0] == other[0] and all(torch.equal(one[1][name], other[1][name]) for name in one[1])


@pytest.mark.parametrize("count", few([2], [4]))
@pytest.mark.parametrize("rules", [spec(epochs=2), spec(epochs=2, **EVERYTHING)], ids=["plain", "everything"])
def test_several_processes_take_the_steps_of_one(tmp_path, count, rules) -> None:
    """120 images in batches of 9 leave 3 for the last, which the first rank has alone."""
    expected, alone = trained(plain, rules, tmp_path / "alone")
    answers = together(count, lambda ranks: trained(plain, rules, tmp_path / "shared", ranks))
    assert all(same(answer, answers[0]) for answer in answers)
    history, weights = answers[0]
    assert history["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert history["scores"] == pytest.approx(expected["scores"], abs=1e-12)
    assert max(float((weights[name] - alone[name]).abs().max()) for name in alone) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("count", few([2], [4]))
def test_so_many_processes_train_the_same_network_every_time_also_after_a_stop(tmp_path, count) -> None:
    rules = spec(epochs=2, **EVERYTHING | {"batch_size": 20})
    first = together(count, lambda ranks: trained(noisy, rules, tmp_path / "first", ranks))
    again = together(count, lambda ranks: trained(noisy, rules, tmp_path / "again", ranks))
    assert all(same(answer, first[0]) for answer in (*first, *again))
    stopped = tmp_path / "stopped"
    with pytest.raises(BenchmarkError, match=r"ended"):
        together(count, lambda ranks: trained(noisy, rules, stopped, ranks, on_epoch=stopping_after(1)))
    assert stopped.exists()
    resumed = together(count, lambda ranks: trained(noisy, rules, stopped, ranks))
    assert all(same(answer, first[0]) for answer in resumed)


def test_a_rank_that_is_killed_ends_all_and_they_go_on_from_the_checkpoint(tmp_path) -> None:
    class Killed(standard.Standard):
        def loss(self, network, images, labels, eps_factor):
            if (tmp_path / "checkpoint").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            return super().loss(network, images, labels, eps_factor)

    rules = spec(epochs=2)

    def hit(ranks: Ranks) -> Answer:
        return trained(noisy, rules, tmp_path / "checkpoint", ranks, Killed() if ranks.rank else STANDARD)

    message = r"^rank 1: the process that runs its code failed: it was ended by SIGKILL"
    with pytest.raises(BenchmarkError, match=message):
        together(2, hit)
    resumed = together(2, lambda ranks: trained(noisy, rules, tmp_path / "checkpoint", ranks))
    whole = together(2, lambda ranks: trained(noisy, rules, tmp_path / "whole", ranks))
    assert same(resumed[0], whole[0])


def test_ranks_have_the_same_weights_at_every_step_and_draw_their_own_noise(tmp_path) -> None:
    drawn: list[float] = []
    stepped: list[str] = []

    class Watched(standard.Standard):
        def loss(self, network, images, labels, eps_factor):
            drawn.append(float(torch.rand(())))
            weights = b"".join(p.detach().numpy().tobytes() for p in network.parameters())
            stepped.append(hashlib.sha256(weights).hexdigest())
            return super().loss(network, images, labels, eps_factor)

    def work(ranks: Ranks) -> Answer:
        def make() -> nn.Module:
            network = noisy()
            if ranks.rank:
                network[0][1].reset_parameters()  # the first rank's are what training begins with
            return network

        rules = spec(epochs=2, **EVERYTHING | {"batch_size": 10})
        _, best = trained(make, rules, tmp_path / "checkpoint", ranks, Watched())
        return {"drawn": drawn, "stepped": stepped}, best

    (first, _), (second, _) = together(2, work)
    assert first["stepped"] == second["stepped"]
    assert len(set(first["stepped"])) > 20
    assert not set(first["drawn"]) & set(second["drawn"])


def test_a_loss_that_is_not_finite_in_one_rank_is_one_line_for_all(tmp_path) -> None:
    class Breaking(standard.Standard):
        def loss(self, network, images, labels, eps_factor):
            return super().loss(network, images, labels, eps_factor) * math.nan

    with pytest.raises(BenchmarkError, match=r"^the training loss is nan in epoch 1; lower the learning rate\. "):
        together(2, lambda r: trained(plain, spec(), tmp_path / "checkpoint", r, Breaking() if r.rank else STANDARD))


def test_shares_are_whole_and_have_no_single_image() -> None:
    for count in (2, 3, 4):
        for rows in range(20):
            shares = [Ranks(rank, count, lambda _, sent: sent).share(torch.arange(rows)) for rank in range(count)]
            assert sorted(torch.cat(shares).tolist()) == [*range(rows)]
            assert not any(len(share) == 1 for share in shares[1:])
    assert torch.equal(ALONE.share(torch.arange(3)), torch.arange(3))


def test_too_few_images_for_so_many_processes_are_refused() -> None:
    ranks = Ranks(0, 3, lambda _, sent: sent)
    ranks.check(6, 6)
    ALONE.check(1, 1)
    for batch, validation in ((5, 40), (16, 5)):
        message = rf"^params\.yaml, train: 3 processes cannot share batches of {batch} and"
        with pytest.raises(BenchmarkError, match=message):
            ranks.check(batch, validation)


def test_a_parameter_that_no_rank_has_a_gradient_of_is_left_without() -> None:
    def work(ranks: Ranks) -> Answer:
        both, one, none, fixed = (nn.Parameter(torch.zeros(2)) for _ in range(4))
        both.grad = torch.full((2,), 1.0 + ranks.rank)
        one.grad = torch.ones(2) if ranks.rank else None
        loss = ranks.add_gradients([both, one, none, fixed.requires_grad_(False)], torch.tensor(0.5))
        assert none.grad is None
        return {"loss": loss.item()}, {"both": both.grad, "one": one.grad}

    for answer, gradients in together(2, work):
        assert answer == {"loss": 1.0}
        assert torch.equal(gradients["both"], torch.full((2,), 3.0))
        assert torch.equal(gradients["one"], torch.ones(2))


def test_what_ranks_send_is_added_in_their_order_and_must_be_alike() -> None:
    sent = {"a": torch.tensor([1e8])}
    for value in (-1e8, 1.0):
        add(sent, {"a": torch.tensor([value])})
    assert sent["a"] == 1, "in another order 1 is lost in rounding"
    for other in ({}, {"b": torch.zeros(1)}, {"a": torch.zeros(2)}, {"a": torch.zeros(1, dtype=torch.float64)}):
        with pytest.raises(ValueError, match="keep step"):
            add(sent, other)


@pytest.mark.parametrize(
    ("count", "message"), [(1, {"exchange": "sum"}), (2, {"exchange": "other"}), (2, {"exchange": "sum", "more": 1})]
)
def test_what_is_no_exchange_is_refused(count, message) -> None:
    with pytest.raises(ValueError, match="nothing to exchange"):
        exchange([SimpleNamespace(owner="submissions/X")] * count, message, {}, 0.0)


@pytest.mark.slow
def test_gpus_exchange_among_themselves_what_goes_through_the_evaluator_elsewhere(tmp_path) -> None:
    """Here by Gloo between processors. Of two numbers the sum is the same in either order."""
    rules = spec(epochs=2, **EVERYTHING | {"batch_size": 10})
    through = together(2, lambda ranks: trained(noisy, rules, tmp_path / "through", ranks))
    among = together(2, lambda ranks: trained(noisy, rules, tmp_path / "among", ranks), tmp_path / "meeting")
    assert all(same(answer, through[0]) for answer in among)


@contextmanager
def processes(*works: Callable[[Any], None]) -> Iterator[list[Process]]:
    with ExitStack() as ends:
        yield [ends.enter_context(Process(work, Confinement(()), owner="a test", seconds=60)) for work in works]


def fails(channel) -> None:
    raise BenchmarkError("the GPU is gone")


@pytest.mark.parametrize(("other", "words"), [(fails, "the GPU is gone"), (lambda _: os._exit(0), "failed: it ended")])
def test_a_rank_that_fails_while_the_first_waits_for_it_ends_the_training(other, words) -> None:
    waits, done = lambda _: time.sleep(600), lambda c: c.send({})
    with processes(waits, done, other) as ranks, pytest.raises(BenchmarkError, match=words):
        _wait_for_first(ranks, time.monotonic() + 60)


def test_the_first_is_heard_once_the_others_are_done() -> None:
    def speaks(channel) -> None:
        channel.receive(0)
        channel.send({"said": 1})

    with processes(speaks, lambda c: c.send({})) as ranks:
        ranks[0].send({}, None, 10)
        _wait_for_first(ranks, time.monotonic() + 60)
        assert ranks[0].receive()[0] == {"said": 1}


Answer = tuple[dict[str, Any], Tensors]
MOST = 2**26  # bytes


def together(count: int, work: Callable[[Ranks], Answer], meeting: Path | None = None) -> list[Answer]:
    """What `work` returns in each of `count` processes, by rank; with a `meeting` they exchange among themselves."""

    def run(rank: int, channel: Channel) -> None:
        def ask(kind: str, tensors: Tensors) -> Tensors:
            channel.send({"exchange": kind}, tensors)
            return channel.receive(MOST)[1]

        asks = Collective(rank, count, meeting, 60.0, on_gpus=False) if meeting else ask
        answer, tensors = work(Ranks(rank, count, asks))
        channel.send({"answer": answer}, tensors)

    nothing = Confinement((), memory=2**40)
    ranks = [Process(partial(run, rank), nothing, owner=f"rank {rank}", seconds=60) for rank in range(count)]
    try:
        while "exchange" in (first := ranks[0].receive())[0]:
            exchange(ranks, *first, time.monotonic() + 60)
        return [(message["answer"], tensors) for message, tensors in [first, *(rank.receive() for rank in ranks[1:])]]
    finally:
        for rank in ranks:
            rank.close()
