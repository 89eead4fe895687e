"""What a rank that has failed says, in few words and in many; to whom; and for whom it stays."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch.distributed as dist

from pipedsl.runtime import watch
from pipedsl.runtime.position import Position
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wording import Account, end_of_chain, in_short, is_due_to_one, waits_for

PATIENCE = 50.0  # seconds, where it is not time that runs out


@pytest.mark.parametrize(
    ("why", "peer", "sure"),
    [
        ("raised", -1, True),
        ("parted", -1, True),
        ("lost", 1, True),
        ("lost", -1, False),
        ("waited", -1, False),
        ("waited", 1, False),  # which may wait in its turn for whom nobody knows
    ],
)
def test_what_another_pipelines_failure_may_explain_is_told_as_such(why: str, peer: int, sure: bool) -> None:
    """That is, what is due to nobody that is known: who knows better is to be heard."""
    assert is_due_to_one({"why": why, "peer": peer}) == sure


def test_the_thread_tells_by_a_store_of_its_own() -> None:
    """The main thread may be waiting for the other one."""
    here: Any = SimpleNamespace(
        _elsewhere=Mock(), _store="the thread's", _job_store="its own", _own_job_store="the main thread's"
    )
    here._job_store_of = lambda store: Watch._job_store_of(here, store)
    Watch._tell_elsewhere(here, "the thread's", LOST, "said", True)
    Watch._tell_elsewhere(here, "another", LOST, "said", False)
    assert here._elsewhere.tell.mock_calls == [
        call("its own", "said", sure=True),
        call("the main thread's", "said", sure=False),
    ]


def test_who_is_alone_tells_nobody() -> None:
    here: Any = SimpleNamespace(_elsewhere=Mock(), _own_job_store="the store")
    Watch._tell_elsewhere(here, None, {**LOST, "alone": True}, "said", True)
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


@pytest.mark.parametrize("peer", [-1, 2])
@pytest.mark.parametrize("together", [True, False])
def test_whose_messages_a_rank_waits_for_that_is_brought_back(together: bool, peer: int) -> None:
    """In what all do together, as in a sum over stages, it may be anybody's."""
    here: Any = SimpleNamespace(
        position=SimpleNamespace(communicating=peer >= 0, peer=peer), _all_together=together, _wire=Mock(rank=1, size=4)
    )
    Watch._wake(here)
    woken = [each.args[0] for each in here._wire.wake.mock_calls]
    assert woken == ([2] if peer == 2 else [0, 2, 3] if together else [])


@pytest.mark.parametrize("comes_back", [True, False])
def test_who_cannot_be_brought_back_tells_and_asks_all_the_same(
    comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_GRACE", 0.0)
    does = Mock()
    does._compose.return_value = Account("head", "told", True, ["  more"])
    does._elsewhere.text = "before that another one failed"
    here: Any = SimpleNamespace(
        _store="the store", _job_store="of all", _plan=SimpleNamespace(title="x"), _here="rank 0"
    )
    here._main_is_back, here._running, here._closed = (threading.Event() for _ in range(3))
    here._running.set()
    if comes_back:
        here._main_is_back.set()
    here._wire = Mock(ranks=range(2), give_up=does.give_up)
    here._elsewhere = does._elsewhere
    for each in ("_say_where", "_wake", "_tell_elsewhere", "_compose", "_leave_state"):
        setattr(here, each, getattr(does, each))
    here._in_full = lambda found: Watch._in_full(here, found)
    failure = {**LOST, "peer": -1}
    Watch._bring_back(here, failure)
    tells = call._tell_elsewhere("the store", failure, "rank 0 lost its connection to another rank at F: closed", False)
    asks = [tells, call._compose("the store", failure), call._tell_elsewhere("the store", failure, "told", True)]
    said = "pipeline x: head\n  more\n  before that another one failed\n  this is rank 0"
    begins = [call._say_where("the store", failure), call._wake(), call._elsewhere.look("of all")]
    ends = [call._elsewhere.look("of all"), call._leave_state(), call.give_up(said)]
    assert does.mock_calls == [*begins, *([] if comes_back else [*asks, *ends])]


def find_cause(store: Any, look: Any, **lost: Any) -> tuple[Any, list[Any]]:
    """What rank 0 finds out when it has lost a connection, and what other pipelines are told before."""
    here: Any = SimpleNamespace(
        _look=Mock(side_effect=look), _tell_elsewhere=Mock(), _fate="", _wire=SimpleNamespace(ranks=range(3))
    )
    return Watch._find_cause(here, store, {**LOST, **lost}), [each.args[2] for each in here._tell_elsewhere.mock_calls]


def test_a_cause_that_is_known_is_not_hidden_by_its_consequence() -> None:
    cause = {"why": "raised"}
    assert find_cause(dist.HashStore(), [cause]) == (cause, [])
    lost = "rank 0 lost its connection to rank 1 at F: closed"
    assert find_cause(dist.HashStore(), [None, None, cause]) == (cause, [lost])


def test_a_store_that_is_gone_is_no_cause_of_a_connection_that_is_lost() -> None:
    assert find_cause(None, [{"why": "store"}]) == (None, [])


def test_what_has_failed_alone_where_a_connection_is_lost_to_is_told_at_once() -> None:
    store = dist.HashStore()
    store.set("alone/1", "rank 1 failed at saving")
    lost = "rank 0 lost its connection to rank 1 at F: closed; before that rank 1 failed at saving"
    assert find_cause(store, [None, {"why": "raised"}])[1] == [lost]
    lost = "rank 0 lost its connection to another rank at F: closed"
    assert find_cause(store, [None, {"why": "raised"}], peer=-1)[1] == [lost]


def stands(peer: int = -1, among: Any = (), replicas: Any = ()) -> dict[str, Any]:
    """A rank's report. The ranks of the pipeline are 4, 5 and 6 of the job."""
    return {"where": "somewhere", "turn": "", "seconds": 1.0, "peer": peer, "among": among, "replicas": replicas}


@pytest.mark.parametrize(
    ("why", "stood", "states", "silent", "says", "sure"),
    [
        ("lost", stands(among=[4, 5]), {}, [1], "rank 1 (global rank 5) does not answer", True),
        ("lost", stands(among=[4, 5, 9]), {}, [1], "rank 1 (global rank 5) does not answer", True),
        ("lost", stands(among=[4, 9]), {}, [1], "global rank 9 does not answer", False),  # rank 1 has no part in it
        ("lost", stands(), {}, [1, 2], "rank 1 (global rank 5), rank 2 (global rank 6) do not answer", False),
        ("lost", stands(), {}, [], "global rank 0, global rank 9 do not answer", False),
        ("lost", stands(replicas=[4, 9]), {}, [], "global rank 0, global rank 9 do not answer", False),
        ("lost", stands(among=[4, 5, 6]), {1: stands(among=[4, 5, 6]), 2: stands()}, [], "", False),
        ("lost", stands(among=[4, 5, 6]), {2: stands(among=[6, 9])}, [], "global rank 9 does not answer", False),
        ("waited", stands(among=[4, 9]), {}, [], "global rank 9 does not answer", False),
        ("waited", stands(), {}, [1], "", False),  # it computes
        ("waited", stands(replicas=[4, 9]), {}, [1], "global rank 9 does not answer", False),
        ("waited", stands(1), {1: stands(replicas=[5, 9])}, [2], "global rank 9 does not answer", False),
        ("waited", stands(1), {1: stands(among=[4, 5, 6])}, [2], "rank 2 (global rank 6) does not answer", True),
    ],
)
def test_who_does_not_answer(why: str, stood: Any, states: Any, silent: list[int], says: str, sure: bool) -> None:
    """Of those that it may be due to; of other pipelines where it is none of this one. Of all where nobody knows."""
    elsewhere = Mock()
    elsewhere.silent = lambda store, among: sorted({0, 9} if among is None else {0, 9} & among)
    here: Any = SimpleNamespace(
        _wire=SimpleNamespace(ranks=range(4, 7)), _elsewhere=elsewhere, _job_store_of=lambda store: "the store"
    )
    assert Watch._missing(here, None, {**stood, "why": why}, states, silent) == (f"; {says}" if says else "", sure)


def test_whom_a_rank_waits_for_in_the_end() -> None:
    ranks = [4, 5, 6]
    assert waits_for(stands(), {}, ranks) == set()
    assert waits_for(stands(1), {1: stands(2), 2: stands(replicas=[6, 9])}, ranks) == {5, 6, 9}
    assert waits_for(stands(1), {1: stands(0), 0: stands(1)}, ranks) == {4, 5}  # in a circle
    assert waits_for(stands(among=ranks), {0: stands(), 1: stands(among=[5, 8])}, ranks) == {4, 5, 6, 8}


def account(failure: dict[str, Any], states: dict[int, Any], fate: str = "", alone: str = "") -> Any:
    """What rank 0 of three says, nobody of another pipeline being silent."""
    store = dist.HashStore()
    if alone:
        store.set("alone/2", alone)
    here: Any = SimpleNamespace(
        _wire=SimpleNamespace(ranks=range(3), rank=0, size=3, store_host="the host"),
        _elsewhere=Mock(silent=lambda store, among: []),
        _turns=Mock(apart=lambda store, turns, silent: []),
        _parting=Mock(text=""),
        _fate=fate,
        _gather=lambda store, failure: states,
        _job_store_of=lambda store: store,
    )
    here._missing = lambda *given: Watch._missing(here, *given)
    return Watch._compose(here, store, {"rank": 0, "text": "nothing happened", **failure})


def test_where_waiting_leads_to_one_that_does_not_answer_it_is_known_what_it_is_due_to() -> None:
    found = account({"why": "waited", **stands(1)}, {0: stands(1), 1: stands(2)})
    assert found.sure
    assert found.head.endswith("; what it waits for leads to rank 2, which does not answer")
    found = account({"why": "waited", **stands(1)}, {0: stands(1), 1: stands(2), 2: stands()})
    assert not found.sure
    assert found.head.endswith("; what it waits for leads to rank 2, which stands at somewhere")


def test_a_rank_does_not_say_that_it_does_not_answer_itself() -> None:
    """Its store, which has what it has said itself, may be gone since."""
    found = account({"why": "waited", **stands(1)}, {}, fate="has ended")
    assert not found.sure
    assert found.lines == ["  the others could not be asked: the host, which holds their store, has ended"]
    assert "answer" not in found.head
    found = account({"why": "lost", **stands(1)}, {})
    assert found.lines == ["  no answer from rank 1, rank 2 (dead, stopped, or not in step())"]


def test_other_pipelines_are_told_what_has_failed_on_a_rank_alone() -> None:
    found = account({"why": "lost", **stands(2)}, {0: stands(2), 1: stands()}, alone="rank 2 failed at saving")
    assert found.told == f"{found.head}; before that rank 2 failed at saving"
    assert "  before that rank 2 failed at saving" in found.lines


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
    position.replicas = {2: [0, 4]}
    at: Any = SimpleNamespace(peer=-1, kind="F", stage=2, describe=lambda source: f"F ({source}:1)")
    position.at = at
    report = position.report()
    assert (report["where"], report["peer"], report["among"]) == ("F (x.sched:1)", -1, [])
    assert report["replicas"] == [0, 4]
    position.at = SimpleNamespace(**{**vars(at), "kind": "REDUCE"})  # type: ignore[assignment]
    assert position.report()["replicas"] == []
    position.begin("beginning a step", step=True)
    assert (position.steps, position.among) == (1, ())
