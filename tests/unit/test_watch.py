"""What a rank that has failed says, in few words and in many; to whom; and for whom it stays."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from pipedsl.runtime import watch
from pipedsl.runtime.position import Position
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wording import end_of_chain, in_short

PATIENCE = 50.0  # seconds, where it is not time that runs out


@pytest.mark.parametrize(
    ("why", "peer", "sure"),
    [
        ("raised", -1, True),
        ("parted", -1, True),
        ("lost", 1, True),
        ("lost", -1, False),
        ("waited", -1, False),
    ],
)
def test_what_another_pipelines_failure_may_explain_is_told_as_such(why: str, peer: int, sure: bool) -> None:
    """That is, what is due to nobody that is known: who knows better is to be heard."""
    here: Any = SimpleNamespace(_elsewhere=Mock(), _own_job_store="the store")
    Watch._tell_elsewhere(here, {"why": why, "peer": peer}, "said")
    here._elsewhere.tell.assert_called_once_with("the store", "said", sure=sure)


def test_who_is_alone_tells_nobody() -> None:
    here: Any = SimpleNamespace(_elsewhere=Mock(), _own_job_store="the store")
    Watch._tell_elsewhere(here, {"why": "lost", "peer": 1, "alone": True}, "said")
    assert not here._elsewhere.mock_calls


@pytest.mark.parametrize("hosts", [True, False])
def test_the_host_stays_for_those_that_have_answered(hosts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ranks of its own pipeline, and then for those of others. Rank 2 is gone."""
    monkeypatch.setattr(watch, "_GATHER", 4 * PATIENCE)
    store = dist.HashStore()
    for rank in range(2):
        store.set(f"state/{rank}", "{}")
    wire = SimpleNamespace(rank=0, size=3, hosts_store=hosts)
    here: Any = SimpleNamespace(_wire=wire, _elsewhere=Mock(), _own_job_store="the store of all")
    thread = threading.Thread(target=Watch._leave, args=(here, store, {}))
    thread.start()
    thread.join(0.2 if hosts else PATIENCE)
    assert thread.is_alive() == hosts
    assert here._elsewhere.leave.called != hosts
    store.set("left/1", "")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert store.check(["left/0"])
    here._elsewhere.leave.assert_called_once_with("the store of all")


LOST: Any = {"rank": 0, "why": "lost", "peer": 1, "where": "F", "text": "closed"}


def last_words(said: dict[str, Any], announced: bool = False) -> str:
    here: Any = SimpleNamespace(
        _announced=announced,
        failure=None,
        _look=lambda store, key="failure": said.get(key),
        _store=None,
        _job_store=None,
        _elsewhere=Mock(text="before that another one failed"),
        _plan=SimpleNamespace(title="x"),
        _wire=SimpleNamespace(ranks=range(2)),
        _here="rank 1",
        _where=lambda: "B",
    )
    here._before = lambda: Watch._before(here)
    text = Watch._compose_last_words(here)
    assert here._elsewhere.look.called != announced
    return text


def test_last_words_have_what_is_known() -> None:
    """Also what may be but a consequence; and nothing that has been said."""
    told = "pipeline x: rank 1 was told to end (SIGTERM) at B"
    lost = "; rank 0 lost its connection to rank 1 at F: closed"
    before = "; before that another one failed"
    assert last_words({}) == f"{told}{before}"
    assert last_words({"known": LOST}) == last_words({"failure": LOST}) == f"{told}{lost}{before}"
    assert last_words({"failure": LOST}, announced=True) == ""


@pytest.mark.parametrize(
    ("why", "peer", "among", "silent", "says"),
    [
        ("lost", -1, [4, 5], [1], "; rank 1 (global rank 5) does not answer"),
        ("lost", -1, [4, 5, 9], [1], "; rank 1 (global rank 5) does not answer"),
        ("lost", -1, [], [1, 2], "; rank 1 (global rank 5), rank 2 (global rank 6) do not answer"),
        ("lost", -1, [4, 9], [1], "; global rank 9 does not answer"),  # rank 1 has no part in it
        ("lost", 1, [], [1], ""),
        ("waited", -1, [4, 9], [], "; global rank 9 does not answer"),
        ("waited", -1, [], [1], ""),  # it computes
    ],
)
def test_who_does_not_answer(why: str, peer: int, among: list[int], silent: list[int], says: str) -> None:
    """Of those that it may be due to; of other pipelines where it is none of this one."""
    elsewhere = Mock()
    elsewhere.silent = lambda store, others: sorted(others)
    here: Any = SimpleNamespace(
        _wire=SimpleNamespace(ranks=range(4, 7)), _elsewhere=elsewhere, _own_job_store="the store"
    )
    assert Watch._missing(here, {"why": why, "peer": peer, "among": among}, silent) == says


@pytest.mark.parametrize(
    ("peers", "end"),
    [
        ({1: 2, 2: -1}, 2),
        ({1: 2}, 2),  # which does not answer
        ({1: 2, 2: 1}, 2),
        ({1: 2, 2: 0}, 2),
        ({1: 1}, 1),
    ],
)
def test_where_waiting_leads(peers: dict[int, int], end: int) -> None:
    """In a circle, to the last of it."""
    assert end_of_chain(0, {"peer": 1}, {rank: {"peer": peer} for rank, peer in peers.items()}) == end
    assert end_of_chain(0, {"peer": -1}, {}) == 0


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234. "
            "This is typically caused by a crash of the remote",
            "RuntimeError: Connection closed by peer [127.0.0.1]:1234",
        ),
        ("\n  \nfirst\nsecond", "RuntimeError: first"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_in_one_line(text: str, short: str) -> None:
    assert in_short(RuntimeError(text)) == short


def test_whom_a_rank_exchanges_something_with_is_known_only_while_it_does() -> None:
    position = Position("x.sched")
    position.begin("clipping the gradients", step=False, among=[0, 1])
    report = position.report()
    assert (position.steps, report["where"], report["among"]) == (0, "clipping the gradients", [0, 1])
    call: Any = SimpleNamespace(peer=-1, kind="F", describe=lambda source: f"F ({source}:1)")
    position.at = call
    report = position.report()
    assert (report["where"], report["peer"], report["among"]) == ("F (x.sched:1)", -1, [])
    position.begin("beginning a step", step=True)
    assert (position.steps, position.among) == (1, ())
