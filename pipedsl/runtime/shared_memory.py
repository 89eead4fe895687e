"""Messages between two ranks of one host: their bytes lie in memory that both see, and a socket tells of them.

The sender makes the memory, as an anonymous file that it hands over the socket: no name is left behind, and the kernel
frees it with the last of the two processes. It writes a message into a slot and sends a notice. The receiver copies it
out, and by the way, with its own next notice, says how many it has taken. What the kernel orders are the notices, so
none can be read before the bytes that it tells of.

Nobody waits here who would not wait on a process group. To send never blocks: where all slots are taken, more memory is
made; where none can be had, a notice says that the message takes another way. The end of a send waits at most until the
other rank has posted the receive, which is when a receive, too, says how many messages were taken, if the sender could
need to know.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

_NOTICE = struct.Struct("<qqq")  # a message's tag or what else it is, bytes, and how many messages were taken
_TAKEN = -1  # the notice of nothing but how many messages were taken
_MEMORY = -2  # that of new memory, with its descriptor: messages from here on lie there, in slots of so many bytes
_ELSEWHERE = -1  # in place of a message's bytes: it takes another way
_NOTICES = 128  # that are read at once
_BUFFER = 1 << 18  # bytes that a socket is asked to have for notices that wait to be read
_PER_MESSAGE = 2 * 800  # of those, which the kernel counts for a message under way: a notice, and one of its memory
_ALIGNED = 64  # bytes, which slots are a multiple of
_DESCRIPTOR = struct.Struct("i")  # beside a notice
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_LIMITS = {errno.EFBIG: " (`ulimit -f`)", errno.EMFILE: " (`ulimit -n`)", errno.ETOOMANYREFS: " (`ulimit -n`)"}
_BESIDE = socket.CMSG_SPACE(_DESCRIPTOR.size) if hasattr(socket, "CMSG_SPACE") else 0  # bytes


@dataclass(frozen=True)
class Window:
    """What the calls say of one direction between two ranks.

    `room`: how many messages must fit before a receive that is posted can be sure of its message. `ahead`: how many
    messages the sender may have sent before that one, with no receive posted for them yet. `under_way`: how many can be
    sent and not taken.
    """

    room: int
    ahead: int
    under_way: int


class _Memory:
    """Slots for messages, which one process writes to and another reads from."""

    def __init__(self, descriptor: int, slot_bytes: int) -> None:
        size = os.fstat(descriptor).st_size
        self.slots = size // slot_bytes
        self.slot_bytes = slot_bytes
        # Mapped for as long as somebody holds the character.
        self._character = ctypes.c_char.from_buffer(mmap.mmap(descriptor, size))
        self._address = ctypes.addressof(self._character)

    @property
    def size(self) -> int:
        return self.slots * self.slot_bytes

    def slot(self, number: int) -> int:
        """The address of a slot; numbers go round."""
        return self._address + number % self.slots * self.slot_bytes


class NoMemory(OSError):
    """The system gives no memory to send a message by."""


class _Message(NamedTuple):
    """One that has arrived. It lies in `memory`, which it keeps; in None where it takes another way."""

    tag: int
    number: int
    size: int
    address: int
    memory: _Memory | None


class Link:
    """One rank's end of what connects it with another rank of its host. For one thread, but where it says for any.

    `connection`: a stream socket. `sends`, `receives`: of both directions. `spin`: seconds that a wait keeps its
    processor before it sleeps. ConnectionError where the other end is gone.
    """

    def __init__(self, connection: socket.socket, sends: Window, receives: Window, spin: float) -> None:
        connection.settimeout(None)
        make_room(connection)
        self._connection = connection
        self._spin = spin
        self._notices = bytearray(_NOTICES * _NOTICE.size)
        # What this end sends: counted from the beginning, and from where the memory was made.
        self._room = sends.room
        self._memory: _Memory | None = None
        self._sent = 0
        self._first = 0
        self._slot_bytes = 0
        self._taken_there = 0
        # What it receives. Taken are those before `_taken`, and `_taken_early`.
        self._window = receives
        self._incoming: _Memory | None = None
        self._incoming_first = 0
        self._arrived: list[_Message] = []
        self._count = 0
        self._taken = 0
        self._taken_early: set[int] = set()
        self._expected = 0
        self._told = 0
        weakref.finalize(self, connection.close)
        self._process = _process_at(connection)
        if self._process >= 0:
            weakref.finalize(self, os.close, self._process)
        _links.add(self)

    # ------------------------------------------------------------- sending

    def send(self, tensors: Sequence[torch.Tensor], tag: int) -> int:
        """Send tensors that are contiguous, as one message; its number. They may change from then on.

        NoMemory where there is none for it: then it is as if nobody had tried.
        """
        size = 0
        for x in tensors:
            if not x.is_cpu:
                raise ValueError(f"a tensor on {x.device} cannot be sent; the modules' parameters are on the CPU")
            size += x.nbytes
        memory = self._memory
        if memory is None or size > memory.slot_bytes:
            memory = self._renew_memory(self._room, size)
        elif self._sent - max(self._first, self._taken_there) >= memory.slots:
            while self._read(wait=False):
                pass
            if self._sent - max(self._first, self._taken_there) >= memory.slots:
                memory = self._renew_memory(memory.slots + self._room, size)
        address = memory.slot(self._sent - self._first)
        for x in tensors:
            length, source = x.nbytes, x.data_ptr()
            if not source and length:
                raise ValueError(f"a {type(x).__name__} that has no memory of its own cannot be sent")
            ctypes.memmove(address, source, length)
            address += length
        return self._tell(tag, size)

    def send_elsewhere(self, tag: int) -> int:
        """Say that a message takes another way, in the order of those that are sent here; its number."""
        return self._tell(tag, _ELSEWHERE)

    def _tell(self, tag: int, size: int) -> int:
        self._notify(tag, size)
        self._sent += 1
        return self._sent

    def is_taken(self, number: int) -> bool:
        """Whether a message and those before it are known to have been taken."""
        return number <= self._taken_there

    def finish_send(self, number: int) -> None:
        """Wait until a message and those before it take no more room than the sender may count on."""
        while number - self._taken_there > self._room:
            self._read()

    @property
    def memory(self) -> int:
        """The bytes of the memory that messages are sent by."""
        return self._memory.size if self._memory is not None else 0

    def forget_sizes(self) -> None:
        """The next message may be smaller than those before."""
        self._memory, self._slot_bytes = None, 0

    def _renew_memory(self, slots: int, size: int) -> _Memory:
        """Other memory for this and later messages. What lies in the old one stays until it has been taken."""
        self._slot_bytes = max(self._slot_bytes, -(-max(size, 1) // _ALIGNED) * _ALIGNED)
        notice = _NOTICE.pack(_MEMORY, self._slot_bytes, self._taken)
        with _naming(f"no {slots * self._slot_bytes} bytes of shared memory could be made", NoMemory):
            descriptor = os.memfd_create("pipedsl")
            try:
                # Now rather than at the first use, where a lack of memory would be a signal.
                os.posix_fallocate(descriptor, 0, slots * self._slot_bytes)
                memory = _Memory(descriptor, self._slot_bytes)
                socket.send_fds(self._connection, [notice], [descriptor])
            finally:
                os.close(descriptor)
        self._memory, self._first = memory, self._sent
        return memory

    def _notify(self, what: int, size: int) -> None:
        self._connection.send(_NOTICE.pack(what, size, self._taken))
        self._told = self._taken

    # ------------------------------------------------------------- receiving

    def expect(self) -> None:
        """A receive is posted."""
        self._expected += 1
        window = self._window
        if self._expected + window.ahead - self._told > window.room:
            with contextlib.suppress(ConnectionError):  # gone, but what it has sent before may be here
                self._notify(_TAKEN, 0)

    def arrive(self, tag: int) -> None:
        """Wait until a message has arrived, and leave it there."""
        self._find(tag)

    def receive(self, tensors: Sequence[torch.Tensor], tag: int) -> bool:
        """Wait for a message, and take it, into these tensors; False where it takes another way, and nothing is here.

        ValueError where it is none of theirs.
        """
        message = self._arrived.pop(self._find(tag))
        if message.memory is not None:
            size = sum([x.nbytes for x in tensors])
            if message.size != size:
                raise ValueError(f"a message of {message.size} bytes has come where one of {size} is to be received")
            address = message.address
            for x in tensors:
                length = x.nbytes
                ctypes.memmove(x.data_ptr(), address, length)
                address += length
        if message.number != self._taken:
            self._taken_early.add(message.number)
        else:
            self._taken += 1
            while self._taken in self._taken_early:
                self._taken_early.remove(self._taken)
                self._taken += 1
        return message.memory is not None

    def _find(self, tag: int) -> int:
        """Where the message is among those that have arrived; of several with one tag the first."""
        while True:
            for place, message in enumerate(self._arrived):
                if message.tag == tag:
                    return place
            self._read()

    # ------------------------------------------------------------- both

    def _read(self, *, wait: bool = True) -> bool:
        """Read what notices there are, at least one if it is to wait; whether there were any."""
        try:
            count, beside, *_ = self._next(wait)
        except BlockingIOError:
            return False
        if not count:
            raise ConnectionResetError("Connection closed by the other process")
        for what, size, taken in _NOTICE.iter_unpack(memoryview(self._notices)[:count]):
            self._taken_there = taken
            if what == _MEMORY:
                self._take_memory(size, beside)
            elif what != _TAKEN:
                memory = self._incoming if size != _ELSEWHERE else None
                address = memory.slot(self._count - self._incoming_first) if memory is not None else 0
                self._arrived.append(_Message(what, self._count, size, address, memory))
                self._count += 1
        return True

    def _next(self, wait: bool) -> tuple[int, list[tuple[int, int, bytes]], int, object]:
        """Notices into `_notices`: how many bytes, and what came beside. Sleep only where the other end takes long."""
        read, buffers = self._connection.recvmsg_into, [self._notices]
        if wait and not self._spin:
            return read(buffers, _BESIDE)
        until = time.perf_counter() + self._spin
        while True:
            try:
                return read(buffers, _BESIDE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not wait:
                    raise
                if time.perf_counter() > until:
                    return read(buffers, _BESIDE)

    def _take_memory(self, slot_bytes: int, beside: Sequence[tuple[int, int, bytes]]) -> None:
        with _naming("no shared memory of another rank could be taken over"):
            if not beside:  # the kernel had nowhere to put it
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            (descriptor,) = _DESCRIPTOR.unpack(beside[0][2])
            try:
                self._incoming, self._incoming_first = _Memory(descriptor, slot_bytes), self._count
            finally:
                os.close(descriptor)

    @property
    def ended(self) -> bool:
        """Whether the other rank's process is known to have ended, though another may hold its sockets; any thread."""
        if self._process < 0:
            return False
        waiting = select.poll()
        waiting.register(self._process, select.POLLIN)
        return bool(waiting.poll(0))

    def shut(self) -> None:
        """Make a wait for the other rank raise, now or when it begins; from any thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    def abandon(self) -> None:
        """Use it no longer, and leave it open: that it closes is to say that the process has ended."""
        self._connection.detach()

    def leave_to_parent(self) -> None:
        """In a process that was forked from a rank: let go, so that the rank's end is the connection's."""
        self._connection.close()


@contextlib.contextmanager
def _naming(what: str, kind: type[OSError] = OSError) -> Iterator[None]:
    """Say of what the system refuses what it was for, which limit it may be, and what does without."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        limit = _LIMITS.get(error.errno or 0, "")
        way_out = "Pipeline(..., shared_memory=False), on every rank, does without"
        raise kind(error.errno, f"{what}: {error.strerror}{limit}; {way_out}") from error


def _process_at(connection: socket.socket) -> int:
    """A descriptor of the process at the other end, readable once it has ended; -1 where the system has none for it."""
    with contextlib.suppress(OSError, AttributeError):
        process, _, _ = credentials(connection)
        return os.pidfd_open(process)
    return -1


def credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of the other end, as they were when it was connected."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(found)
    return process, user, group


def make_room(connection: socket.socket) -> int:
    """Give a socket its room for notices; how many messages, both ways, it can tell of, so that to send never blocks.

    That is fewer where the system (net.core.wmem_max) grants less than is asked for.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // _PER_MESSAGE


def can_share_memory() -> bool:
    """Whether this system has what links need: Linux does, in most sandboxes, too."""
    try:
        os.close(os.memfd_create("pipedsl"))
    except (AttributeError, OSError):
        return False
    return hasattr(socket, "AF_UNIX") and hasattr(socket, "SO_PEERCRED")


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _leave_links_to_parent() -> None:
    """A process forked from a rank, as one that loads data, would keep connections open when the rank has died."""
    for link in list(_links):
        link.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_links_to_parent)
