"""Messages through memory: what is sent arrives, nobody waits longer than by a process group, memory is used again."""

from __future__ import annotations

import os
import socket
import threading

import pytest
import torch

from pipedsl.runtime import shared_memory
from pipedsl.runtime.shared_memory import Link, can_share_memory, make_room
from tests.support.linked import LIMIT, descriptors_of, pair, take

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not")


@pytest.fixture
def links() -> tuple[Link, Link]:
    return pair()


@pytest.mark.parametrize("spin", [0.0, 1e-4])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool, torch.uint8]
)
def test_a_message_is_what_was_sent(dtype: torch.dtype, spin: float) -> None:
    here, there = pair(spin=spin)
    sent = [torch.randint(2, shape).to(dtype) for shape in [(3, 5), (), (0, 4), (1,)]]
    for turn in range(5):  # round the ring
        here.send(sent, turn)
        received = [torch.empty_like(x) for x in sent]
        there.expect()
        there.receive(received, turn)
        assert all(torch.equal(a, b) for a, b in zip(sent, received, strict=True))


def test_what_was_sent_may_change_at_once(links: tuple[Link, Link]) -> None:
    here, there = links
    x = torch.ones(4)
    here.send([x], 0)
    x.zero_()
    assert torch.equal(take(there, x, 0), torch.ones(4))


def test_a_slow_receiver_gets_everything(links: tuple[Link, Link]) -> None:
    """The sender is far ahead: it takes more memory, and nothing is written over. Messages are taken in any order."""
    here, there = links
    sent = [torch.full((100,), float(k)) for k in range(50)]
    for tag, x in enumerate(sent):
        here.send([x], tag)
    order = [*range(10, 50), *range(9, -1, -1)]
    assert all(torch.equal(take(there, sent[tag], tag), sent[tag]) for tag in order)
    assert not there._taken_early  # which else would grow from step to step
    memory = here.memory
    for tag in range(50, 500):  # taken in turn: there is room again
        here.send([sent[tag % 50]], tag)
        assert torch.equal(take(there, sent[0], tag), sent[tag % 50])
        there.send([sent[0]], tag)
        take(here, sent[0], tag)
    assert here.memory == memory


def test_what_has_not_been_taken_is_not_written_over(links: tuple[Link, Link]) -> None:
    """Where a later message has been taken, and the sender knows."""
    here, there = links
    for tag in range(2):
        here.send([torch.tensor(tag)], tag)
    assert int(take(there, torch.tensor(0), 1)) == 1
    there.send([torch.tensor(9)], 9)
    take(here, torch.tensor(0), 9)
    here.send([torch.tensor(2)], 2)
    assert [int(take(there, torch.tensor(0), tag)) for tag in (0, 2)] == [0, 2]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One for each memory that has been made."""
    make, names = os.memfd_create, list[str]()

    def note(name: str) -> int:
        names.append(name)
        return make(name)

    monkeypatch.setattr(os, "memfd_create", note)
    return names


@pytest.mark.parametrize("size", [15, 16, 17])
def test_messages_one_way_use_the_same_memory_again(size: int, links: tuple[Link, Link], made: list[str]) -> None:
    """Though the sender never waits, it looks at what has been taken before it makes more. A slot may be full."""
    here, there = links
    x = torch.ones(size)
    for tag in range(4):
        here.send([x], tag)
        take(there, x, tag)
    memories = len(made)
    for tag in range(4, 100):
        here.send([x], tag)
        take(there, x, tag)
    assert len(made) == memories


def test_all_that_has_been_said_is_heard_before_more_memory_is_made(links: tuple[Link, Link], made: list[str]) -> None:
    """The last that was said comes after other memory, which the system hands over one at a time."""
    here, there = links
    x = torch.ones(16)
    for tag in range(2):
        here.send([x], tag)
    there.send([x], 0)
    for tag in range(2):
        take(there, x, tag)
    there.send([torch.ones(32)], 1)
    memories = len(made)
    here.send([x], 2)
    assert len(made) == memories
    assert torch.equal(take(here, torch.ones(32), 1), torch.ones(32))


def test_who_is_far_ahead_takes_more_memory_at_a_time(links: tuple[Link, Link], made: list[str]) -> None:
    """With 2, 4, 6, ... slots, of which each is used before more is made."""
    here, there = links
    sent = [torch.full((16,), k) for k in range(2 + 4 + 6 + 8 + 10)]
    for tag, x in enumerate(sent):
        here.send([x], tag)
    assert len(made) == 5
    assert all(torch.equal(take(there, x, tag), x) for tag, x in enumerate(sent))


def test_memory_is_taken_from_the_system_before_it_is_used(
    links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is no longer used is given back."""
    make, kept = os.memfd_create, list[int]()

    def keep(name: str) -> int:
        kept.append(os.dup(descriptor := make(name)))
        return descriptor

    here, there = links
    before = descriptors_of("memfd:pipedsl")
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", keep)
        here.send([torch.ones(10_000)], 0)
    found = os.fstat(kept[0])
    os.close(kept[0])
    assert found.st_size == here.memory == 80_000
    assert found.st_blocks * 512 >= found.st_size
    take(there, torch.ones(10_000), 0)
    for tag in range(1, 6):
        here.forget_sizes()
        here.send([torch.ones(10)], tag)
        take(there, torch.ones(10), tag)
    assert descriptors_of("memfd:pipedsl") == before + 2  # what is mapped, by both ends


@pytest.mark.parametrize("granted", [1 << 12, 1 << 14, 1 << 18])
def test_to_send_never_blocks(granted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody reads: there is room for all that can be under way, each with new memory, whatever is granted."""
    monkeypatch.setattr(shared_memory, "_BUFFER", granted)
    here, there = pair()
    found = here._connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    most = make_room(here._connection)
    assert found // shared_memory._PER_MESSAGE == most >= 5  # the link has seen to it

    def send() -> None:
        for tag in range(most):
            here.send([torch.full((8 * (tag + 1),), tag)], tag)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
    last = torch.full((8 * most,), most - 1)
    assert torch.equal(take(there, last, most - 1), last)


def test_memory_that_is_made_for_more_has_room_for_the_largest(links: tuple[Link, Link], made: list[str]) -> None:
    """Though it is a small message that there was no slot left for."""
    here, there = links
    sent = [torch.full((size,), k) for k, size in enumerate((100, 100, 1, 100, 100))]
    for tag, x in enumerate(sent):
        here.send([x], tag)
    assert len(made) == 2
    assert all(torch.equal(take(there, x, tag), x) for tag, x in enumerate(sent))


def test_a_message_may_be_empty(links: tuple[Link, Link]) -> None:
    """Also the first one, which there is no memory for yet."""
    here, there = links
    for tag, tensors in enumerate(([torch.ones(0)], [], [torch.ones(2, 0), torch.ones(3)], [torch.ones(0)])):
        here.send(tensors, tag)
        there.expect()
        received = [torch.empty_like(x) for x in tensors]
        assert there.receive(received, tag)
        assert all(torch.equal(a, b) for a, b in zip(tensors, received, strict=True))


def test_of_messages_with_one_tag_the_first_comes_first(links: tuple[Link, Link]) -> None:
    here, there = links
    for value in range(3):
        here.send([torch.tensor(value)], 7)
    assert [int(take(there, torch.tensor(0), 7)) for _ in range(3)] == [0, 1, 2]


def test_sizes_may_grow_and_shrink(links: tuple[Link, Link]) -> None:
    here, there = links
    for tag, size in enumerate([10, 100_000, 10]):
        here.send([torch.arange(size)], tag)
    for tag, size in enumerate([10, 100_000, 10]):
        assert torch.equal(take(there, torch.arange(size), tag), torch.arange(size))
    assert here.memory >= 800_000
    here.forget_sizes()
    here.send([torch.arange(10)], 3)
    assert torch.equal(take(there, torch.arange(10), 3), torch.arange(10))
    assert here.memory < 1000


@pytest.mark.parametrize("size", [2, 4])
def test_a_message_of_another_size_is_no_data(size: int, links: tuple[Link, Link]) -> None:
    here, there = links
    here.send([torch.zeros(3)], 0)
    with pytest.raises(ValueError, match=f"a message of 12 bytes has come where one of {4 * size} is to be received"):
        take(there, torch.zeros(size), 0)


def test_only_what_lies_in_main_memory_is_sent(links: tuple[Link, Link]) -> None:
    with pytest.raises(ValueError, match="a tensor on meta cannot be sent"):
        links[0].send([torch.empty(3, device="meta")], 0)
    freed = torch.empty(3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="a Tensor that has no memory of its own cannot be sent"):
        links[0].send([freed], 0)


def test_what_goes_another_way_has_its_place_among_messages(links: tuple[Link, Link]) -> None:
    """It is told of in order, counts as sent and as taken, and leaves what comes before and after it alone."""
    here, there = links
    sent = [torch.full((4,), float(tag)) for tag in range(12)]
    elsewhere = {0, 1, 5, 6, 7, 10}
    numbers = [here.send_elsewhere(tag) if tag in elsewhere else here.send([x], tag) for tag, x in enumerate(sent)]
    assert numbers == list(range(1, 13))
    for tag in [0, 2, 1, 4, 3, 11, 5, 10, 9, 8, 6, 7]:
        there.expect()
        tensor = torch.zeros(4)
        assert there.receive([tensor], tag) == (tag not in elsewhere)
        assert torch.equal(tensor, torch.zeros(4) if tag in elsewhere else sent[tag])
        there.send([tensor], tag)
        take(here, tensor, tag)
        assert here.is_taken(5) == (tag not in (0, 2, 1, 4))
        assert here.is_taken(numbers[-1]) == (tag == 7)


def test_the_end_of_a_send_waits_for_its_receive_to_be_posted_at_most() -> None:
    """Three messages have room. A later one's send ends with its receive's call, and before it is taken."""
    here, there = pair(room=3)
    x = torch.tensor(0)
    numbers = [here.send([x], tag) for tag in range(5)]
    for number in numbers[:3]:
        here.finish_send(number)
    take(there, x, 0)
    for _ in range(2):
        there.expect()
    for tag in (3, 4):
        waits = threading.Thread(target=here.finish_send, args=(numbers[tag],), daemon=True)
        waits.start()
        waits.join(0.05)
        assert waits.is_alive()
        there.expect()
        waits.join(LIMIT)
        assert not waits.is_alive()
        there.receive([x], tag - 2)


def test_the_end_of_a_send_waits_for_what_it_needs_to_hear(links: tuple[Link, Link]) -> None:
    """What else is said before does not end it; and what is taken is known to the message."""
    here, there = links
    x = torch.ones(3)
    numbers = [here.send([x], tag) for tag in range(5)]
    there.send([x], 0)  # says that none is taken; other memory comes alone
    for tag in range(3):
        take(there, x, tag)
    there.send([x], 1)
    here.finish_send(numbers[4])
    assert [here.is_taken(number) for number in numbers] == [True, True, True, False, False]


def test_the_end_of_a_send_does_not_wait_for_the_receive_of_an_earlier_message() -> None:
    here, there = pair(room=3, ahead=1)
    x = torch.tensor(0)
    numbers = [here.send([x], tag) for tag in range(4)]
    take(there, x, 0)
    for _ in (2, 3):  # and none for 1
        there.expect()
    waits = threading.Thread(target=here.finish_send, args=(numbers[3],), daemon=True)
    waits.start()
    waits.join(LIMIT)
    assert not waits.is_alive()


def test_who_answers_says_with_that_what_it_has_taken(
    links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing besides: each notice costs a call of the system at both ends."""
    here, there = links
    said: list[int] = []
    for link in links:
        tell = link._notify
        monkeypatch.setattr(link, "_notify", lambda what, size, tell=tell: (said.append(what), tell(what, size)))
    x = torch.ones(3)
    for tag in range(20):
        here.send([x], tag)
        take(there, x, tag)
        there.send([x], tag)
        take(here, x, tag)
    assert said == [tag for tag in range(20) for _ in links]
