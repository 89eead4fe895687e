"""Messages through memory: what is sent arrives, nobody waits longer than by a process group, the dead are noticed."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pipedsl.runtime import shared_memory
from pipedsl.runtime.shared_memory import Link, NoMemory, Window, can_share_memory, make_room
from tests.support.launch import ROOT

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not")

WAY_OUT = r"Pipeline\(\.\.\., shared_memory=False\), on every rank, does without"
LIMIT = 60.0  # seconds; nothing here takes more than a moment, but the machine may be busy


def pair(room: int = 2, spin: float = 0.0, ahead: int = 0) -> tuple[Link, Link]:
    """Both ends, with room for so many messages each way; `ahead` of them may have no receive when a later one has."""
    one, other = socket.socketpair()
    window = Window(room, ahead, 9)
    return Link(one, window, window, spin), Link(other, window, window, spin)


def descriptors_of(what: str) -> int:
    """How many descriptors this process has of such things."""
    gc.collect()
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that which lists the folder is gone
            found += what in os.readlink(path)
    return found


@pytest.fixture
def links() -> tuple[Link, Link]:
    return pair()


def take(link: Link, like: torch.Tensor, tag: int) -> torch.Tensor:
    """Post a receive, and wait for it."""
    link.expect()
    tensor = torch.empty_like(like)
    link.receive([tensor], tag)
    return tensor


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
    most = make_room(here._connection)
    assert most >= 5

    def send() -> None:
        for tag in range(most):
            here.send([torch.full((8 * (tag + 1),), tag)], tag)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
    last = torch.full((8 * most,), most - 1)
    assert torch.equal(take(there, last, most - 1), last)


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


def test_a_message_of_another_size_is_no_data(links: tuple[Link, Link]) -> None:
    here, there = links
    here.send([torch.zeros(3)], 0)
    with pytest.raises(ValueError, match="a message of 12 bytes has come where one of 16 is to be received"):
        take(there, torch.zeros(4), 0)


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


def test_the_dead_are_noticed_and_what_they_sent_is_there(links: tuple[Link, Link]) -> None:
    here, there = links
    for tag in range(6):  # more than can be taken without saying so
        there.send([torch.tensor(tag)], tag)
    there._connection.close()
    assert [int(take(here, torch.tensor(0), tag)) for tag in range(6)] == list(range(6))
    with pytest.raises(ConnectionError):
        take(here, torch.tensor(0), 6)
    with pytest.raises(ConnectionError):
        here.send([torch.tensor(0)], 7)


def test_a_wait_has_no_limit_of_its_own_and_does_not_keep_its_processor() -> None:
    """Whatever limit the connection was made with."""
    one, other = socket.socketpair()
    one.settimeout(0.01)
    link = Link(one, Window(2, 0, 9), Window(2, 0, 9), spin=1e-4)
    spent: list[float] = []

    def wait() -> None:
        before = time.thread_time()
        link.arrive(0)
        spent.append(time.thread_time() - before)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    there = Link(other, Window(2, 0, 9), Window(2, 0, 9), 0.0)
    there.send([torch.tensor(0)], 0)
    thread.join(LIMIT)
    assert spent[0] < 0.05


def test_a_waiting_thread_can_be_called_back(links: tuple[Link, Link]) -> None:
    """The other rank, which may be waiting, too, for somebody else, is not told that this one has died."""
    here, there = links
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            here.arrive(0)
        except ConnectionError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.05)
    here.shut()
    thread.join(LIMIT)
    assert len(errors) == 1
    here.send([torch.tensor(1)], 0)
    there.arrive(0)
    assert not there._read(wait=False)


def test_a_link_that_is_abandoned_says_nothing() -> None:
    """Not even when it is gone, as long as its process lives on."""
    here, there = pair()
    descriptor = here._connection.fileno()
    here.abandon()
    here.abandon()
    here.shut()
    del here
    gc.collect()
    assert not there._read(wait=False)
    os.close(descriptor)


def test_too_many_open_files_are_an_error_and_no_wrong_data(links: tuple[Link, Link]) -> None:
    here, there = links
    here.send([torch.tensor(1)], 0)
    gc.collect()
    opened = [os.dup(0)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 2, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.dup(0))
        taken = r"no shared memory of another rank could be taken over: Too many open files \(`ulimit -n`\); "
        with pytest.raises(OSError, match=taken + WAY_OUT):
            there.arrive(0)
        made = r"no 128 bytes of shared memory could be made: Too many open files \(`ulimit -n`\); "
        with pytest.raises(NoMemory, match=made + WAY_OUT):
            there.send([torch.tensor(1)], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in opened:
            os.close(descriptor)


def test_too_low_a_limit_of_files_sizes_is_named(links: tuple[Link, Link]) -> None:
    here, there = links
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        here.send([torch.zeros(100)], 0)
        with pytest.raises(NoMemory, match=r"no 1664 bytes of .*: File too large \(`ulimit -f`\); " + WAY_OUT):
            here.send([torch.zeros(200)], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    here.send([torch.ones(200)], 1)  # nothing is left of the attempt
    assert [float(take(there, torch.zeros(n), tag).sum()) for tag, n in enumerate((100, 200))] == [0, 200]


def test_memory_that_the_system_refuses_is_an_error(links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(
        NoMemory, match="no 128 bytes of shared memory could be made: Operation not permitted; " + WAY_OUT
    ):
        links[0].send([torch.tensor(1)], 0)


def test_too_many_open_files_on_their_way_to_others_are_named(
    links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system counts them with those that are open."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    here, there = links
    before = descriptors_of("memfd:pipedsl")
    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", refuse)
        with pytest.raises(NoMemory, match=r"no 128 bytes .*: Too many references.* \(`ulimit -n`\); " + WAY_OUT):
            here.send([torch.tensor(1)], 0)
    assert descriptors_of("memfd:pipedsl") == before
    here.send([torch.tensor(1)], 0)
    assert int(take(there, torch.tensor(0), 0)) == 1


FORKING = """
import ctypes, os, signal, socket, sys, time
from pipedsl.runtime.shared_memory import Link, Window
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print(flush=True)
    connection, _ = listener.accept()
link = Link(connection, Window(2, 0, 9), Window(2, 0, 9), 0.0)
child = os.fork() if sys.argv[2] == "by Python" else ctypes.CDLL(None).fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
link.arrive(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("forks", ["by Python", "by other means"])
def test_a_forked_process_does_not_hide_that_a_rank_has_died(forks: str, tmp_path: Path) -> None:
    """As the workers of a data loader, which live on for a while. Those that Python has forked let go of the socket."""
    command = [sys.executable, "-c", FORKING, str(tmp_path / "socket"), forks]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    watched = descriptors_of("pidfd")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(tmp_path / "socket"))
        link = Link(connection, Window(2, 0, 9), Window(2, 0, 9), 0.0)
        child = int(process.stdout.readline())
        try:
            assert not link.ended
            link.send([torch.tensor(0)], 0)
            assert process.wait(LIMIT) == -signal.SIGKILL
            assert link.ended
            if forks == "by Python":
                with pytest.raises(ConnectionError):
                    link.arrive(0)
            else:
                assert not link._read(wait=False)
            assert Path(f"/proc/{child}").exists()
        finally:
            os.kill(child, signal.SIGKILL)
    assert descriptors_of("pidfd") == watched + 1
    del link
    assert descriptors_of("pidfd") == watched


def test_a_system_that_tells_of_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that has no descriptor left: all else works."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    here, there = pair()
    here.send([torch.ones(3)], 0)
    assert torch.equal(take(there, torch.ones(3), 0), torch.ones(3))
    assert not here.ended
