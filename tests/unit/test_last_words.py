"""A process that SIGTERM ends in a step says where it was, and ends as it would have without that."""

from __future__ import annotations

import signal
import subprocess
import sys

PRELUDE = """
import ctypes, os, signal, sys, time
from pipedsl.runtime.last_words import LastWords
words = LastWords(lambda: "these are the last words", lambda: print("left", flush=True))
def blocked():
    "In C, which signals do not interrupt."
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    print("blocked", flush=True)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""


def run(body: str, *, terminate: bool = False) -> tuple[int, str, str]:
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            if terminate:
                assert process.stdout is not None
                assert process.stdout.readline() == "blocked\n"
                process.terminate()
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


def test_a_process_that_is_blocked_in_c_says_its_last_words() -> None:
    assert run("words.install(); blocked()", terminate=True) == (
        -signal.SIGTERM,
        "left\n",
        "these are the last words\n",
    )


def test_so_does_one_that_runs_python() -> None:
    code, _, err = run("words.install(); print('blocked', flush=True)\nwhile True: pass", terminate=True)
    assert (code, err) == (-signal.SIGTERM, "these are the last words\n")


def test_a_process_with_too_many_files_open_does_without() -> None:
    body = """
import resource
opened = [os.dup(0)]
resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 1, opened[0] + 1))
words = LastWords(lambda: "said", lambda: print("left", flush=True))
words.install(); words.remove(); words.close()
words.install(); blocked()
"""
    assert run(body, terminate=True) == (-signal.SIGTERM, "", "")


def test_outside_of_a_step_nothing_is_said() -> None:
    assert run("words.install(); words.remove(); blocked()", terminate=True) == (-signal.SIGTERM, "", "")


def test_words_that_are_not_found_do_not_keep_the_process() -> None:
    body = "words._compose = lambda: time.sleep(600); words.install(); blocked()"
    assert run(body, terminate=True) == (-signal.SIGTERM, "left\n", "")


def test_what_goes_wrong_after_them_does_not_keep_it_either() -> None:
    body = "words._leave = lambda: 1 / 0; words.install(); blocked()"
    assert run(body, terminate=True) == (-signal.SIGTERM, "", "these are the last words\n")


def test_handlers_of_others_stay() -> None:
    body = """
signal.signal(signal.SIGTERM, lambda *_: print("mine"))
words.install()
os.kill(os.getpid(), signal.SIGTERM)
words.remove()
assert callable(signal.getsignal(signal.SIGTERM))
signal.signal(signal.SIGTERM, signal.SIG_DFL)
import socket
a, b = socket.socketpair()
b.setblocking(False)
signal.set_wakeup_fd(b.fileno())
words.install()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
words.remove()
assert signal.set_wakeup_fd(-1) == b.fileno()
words.install()
words.remove()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
assert signal.set_wakeup_fd(-1) == -1
words.close()
"""
    assert run(body) == (0, "mine\n", "")


def test_ending_a_forked_process_ends_that_one_alone() -> None:
    """As the workers of a data loader that is first used in a step."""
    body = """
words.install()
child = os.fork()
if child == 0:
    time.sleep(600)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
time.sleep(0.2)
print(os.waitstatus_to_exitcode(status))
words.remove()
words.close()
"""
    assert run(body) == (0, "-15\n", "")
