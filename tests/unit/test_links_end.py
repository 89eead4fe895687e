"""Links whose other end is gone or called back, and links that the system has no room for."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from pipedsl.runtime.shared_memory import Link, NoMemory, Window, can_share_memory, credentials
from tests.support.launch import ROOT
from tests.support.linked import LIMIT, descriptors_of, pair, take

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not")

WAY_OUT = r"Pipeline\(\.\.\., shared_memory=False\), on every rank, does without"


@pytest.fixture
def links() -> tuple[Link, Link]:
    return pair()


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


@pytest.mark.parametrize(("spin", "looks"), [(0.0, 0), (1.0, 5)])
def test_a_wait_looks_for_as_long_as_it_may_keep_its_processor_and_then_sleeps(
    spin: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, _ = pair(spin=spin)
    clock, asked = itertools.count(), list[int]()

    def nothing(buffers: Any, beside: int, flags: int = 0) -> tuple[int, list[Any]]:
        asked.append(flags)
        if flags:
            raise BlockingIOError
        return 0, []

    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 4)
    monkeypatch.setattr(link, "_connection", Mock(recvmsg_into=nothing))
    with pytest.raises(ConnectionResetError):
        link.arrive(0)
    assert asked == [socket.MSG_DONTWAIT] * looks + [0]
    asked.clear()
    assert not link._read(wait=False)
    assert asked == [socket.MSG_DONTWAIT]


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


def test_a_link_that_is_gone_has_closed_what_it_had() -> None:
    """By itself: Python would complain of what it has to close."""
    both = pair()
    gc.collect()
    before = descriptors_of("socket:")
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        del both
        gc.collect()
    assert descriptors_of("socket:") == before - 2
    assert not complaints


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
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert link.ended  # though nobody has asked for its status yet
            assert process.wait(LIMIT) == -signal.SIGKILL
            assert link.ended
            if forks == "by Python":
                with pytest.raises(ConnectionError):
                    link.arrive(0)
            else:
                assert not link._read(wait=False)
            assert Path(f"/proc/{child}").exists()
        finally:
            process.kill()  # which has ended by itself, unless something is wrong
            os.kill(child, signal.SIGKILL)
    assert descriptors_of("pidfd") == watched + 1
    del link
    assert descriptors_of("pidfd") == watched


@pytest.mark.parametrize("error", [None, OSError(errno.EMFILE, "too many")], ids=["none", "no more"])
def test_a_system_that_tells_of_no_process(error: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that has no descriptor left: all else works."""
    if error is None:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    else:
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=error), raising=False)
    here, there = pair()
    here.send([torch.ones(3)], 0)
    assert torch.equal(take(there, torch.ones(3), 0), torch.ones(3))
    assert not here.ended


def test_the_system_names_process_user_and_group_in_this_order() -> None:
    """`struct ucred` in unix(7). They are not to be told apart where root asks about itself."""
    connection = Mock(getsockopt=Mock(return_value=struct.pack("iii", 7, 8, 9)))
    assert credentials(connection) == (7, 8, 9)
    connection.getsockopt.assert_called_once_with(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)


def test_whether_a_system_has_what_links_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask leaves nothing behind."""
    before = descriptors_of("memfd:pipedsl")
    assert can_share_memory()
    assert descriptors_of("memfd:pipedsl") == before
    for place, name in ((os, "memfd_create"), (socket, "AF_UNIX"), (socket, "SO_PEERCRED")):
        with monkeypatch.context() as patch:
            patch.delattr(place, name)
            assert not can_share_memory()
    monkeypatch.setattr(os, "memfd_create", Mock(side_effect=PermissionError("not here")))
    assert not can_share_memory()
