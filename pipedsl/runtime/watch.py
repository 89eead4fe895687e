"""One fault ends every rank, and every rank says where it began.

A thread looks at a shared key while a step runs. The rank that fails first sets the key; the others say where they
stand, leave the wait that blocks them, and raise. Nothing is exchanged while all is well. A rank that stands still for
long is compared with those that it waits for: they may do something else.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from pipedsl.runtime.elsewhere import Elsewhere, listed
from pipedsl.runtime.last_words import LastWords
from pipedsl.runtime.parting import Parting, alone_key, failed_alone
from pipedsl.runtime.patience import StoreSilent
from pipedsl.runtime.plan import CannotStart, PipelineError, Plan
from pipedsl.runtime.position import Position, Report
from pipedsl.runtime.post_mortem import PostMortem
from pipedsl.runtime.turns import Turns
from pipedsl.runtime.wire import ConnectionLost, Store, Wire, called, say
from pipedsl.runtime.wording import ENDED, Account, end_of_chain, fate_of, head_of, in_short, is_due_to_one, waits_for

_WATCH_POLL = 0.2  # seconds between two looks at the shared key
_STANDING = 1.0  # seconds at one place, or outside of a step, after which a rank lets the others know
_GATHER = 2.0  # seconds that a failing rank gives the others to say where they stand
_GRACE = 5.0  # seconds that a rank has to come out of what blocks it


class Watch:
    """Finds out that a rank has failed, here or elsewhere, and brings this rank's main thread back."""

    def __init__(self, plan: Plan, wire: Wire, name: str, timeout: float, folder: str = "") -> None:
        self.failure: Report | None = None
        self._plan = plan
        self._wire = wire
        self._here = called(wire, wire.rank)
        self._timeout = timeout
        self._store = wire.store(name, for_thread=True)
        self._own_store = wire.store(name)
        self._job_store = wire.job_store(for_thread=True)
        self._own_job_store = wire.job_store()
        self._elsewhere = Elsewhere(wire, name, timeout, self._own_job_store)
        self._post_mortem = PostMortem(folder, plan, wire.rank, self._own_store) if folder else None
        self.position = self._post_mortem.position if self._post_mortem else Position(plan.source)
        self._turns = Turns(wire.rank)
        self._running = threading.Event()
        self._closed = threading.Event()
        self._main_is_back = threading.Event()
        self._message = ""
        self._announced = False
        self._all_together = False  # whether all ranks take part in what has begun, and not only their neighbours
        self._said = ""  # in one line, before there is a message
        self._known: Report | None = None  # the failure, before there is a decision
        self._answers: dict[int, Report] = {}
        self._fate = ""  # of the store, in words, once it has not answered
        self._parting = Parting(wire, self._own_job_store)
        self._last_words = LastWords(self._compose_last_words, self._leave_state)
        self._thread = threading.Thread(target=self._loop, name="pipedsl-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._running.set()
        self._last_words.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_GATHER)  # it may be waiting for a store that is silent

    @property
    def began_here(self) -> bool:
        """True when this rank was the first to fail."""
        return self.failure is not None and self.failure["rank"] == self._wire.rank

    def begin(self, what: str, step: str = "") -> None:
        """A step begins, or something else that ranks do together. PipelineError where something failed earlier.

        `step`: what kind of step it is, in words that are the same on every rank; empty where it is none.
        """
        if self._message:
            raise PipelineError(f"the pipeline cannot go on after an earlier failure:\n{self._message}")
        self._main_is_back.clear()
        self.position.begin(what, step=bool(step), among=() if step else self._wire.ranks)
        self._all_together = not step
        self._turns.begin(f"step {self.position.steps} ({step})" if step else what)
        self._running.set()
        self._last_words.install()

    def end(self) -> None:
        self._last_words.remove()
        self._running.clear()
        self._turns.end()
        self.position.leave()

    @contextlib.contextmanager
    def alone(self, what: str, *, awaited: bool = False) -> Iterator[None]:
        """While inside, this rank does something by itself: what fails stays what it is, and leaves a state file.

        `awaited`: the others do it too, and wait for each other, so they are told, and all raise CannotStart.
        """
        self.position.note(what)
        self._last_words.install()
        try:
            yield
        except BaseException as error:
            known = None if isinstance(error, PipelineError) else self._own_failure("raised", in_short(error))
            if awaited:
                known = self._tell_all(error, known)
            elif known is not None:  # whoever comes to wait for this rank will know
                with contextlib.suppress(Exception):
                    self._own_store.set(alone_key(self._wire.rank), head_of(self._wire, known))
                    self._parting.tell(self._own_store, self._own_job_store, head_of(self._wire, known))
            if self._post_mortem is not None:
                said = f"pipeline {self._plan.title}: {head_of(self._wire, known)}" if known else str(error)
                self._post_mortem.leave(said, known, {})
            if awaited and known is not None and isinstance(error, Exception):
                raise CannotStart(self._plan, head_of(self._wire, known)) from error
            raise
        finally:
            self._last_words.remove()
            self.position.leave()

    def stop_if_told(self) -> None:
        """While the ranks meet: PipelineError where one of them has failed at that, or their store is gone."""
        failure = self._look(self._own_store)
        if failure is not None:
            raise CannotStart(self._plan, head_of(self._wire, failure))

    def _tell_all(self, error: BaseException, known: Report | None) -> Report | None:
        """Let the other ranks, which make their pipelines too, know why this one has none; what is known then."""
        store = self._own_store
        if isinstance(error, dist.DistError | StoreSilent):  # it need not be the store that is gone
            known = self._look(store) or known
        if known is not None and known["why"] != "store":
            self._declare(store, known["why"], known["text"])
        elif isinstance(error, CannotStart):
            self._declare(store, "unmet", error.why)
        self._say_where(store, known or {})
        if isinstance(error, CannotStart) or known is not None:
            why = error.why if isinstance(error, CannotStart) else head_of(self._wire, known or {})
            self._elsewhere.tell(self._own_job_store, why)
        self._linger(store)
        return known

    def _linger(self, store: Store) -> None:
        """The process that holds the store goes last, when the others have read why nothing starts."""
        deadline = time.monotonic() + _GATHER
        with contextlib.suppress(Exception):
            store.add("read", 1)
            while self._wire.hosts_store and store.add("read", 0) < self._wire.size and time.monotonic() < deadline:
                time.sleep(_WATCH_POLL / 10)
            self._elsewhere.leave(self._own_job_store)

    def stop_if_failed(self) -> None:
        """Called by the main thread between calls: leave early where another rank has failed."""
        if self.failure is not None:
            raise PipelineError("another rank failed")

    # ------------------------------------------------------------------ the thread

    def _loop(self) -> None:
        while True:
            if not self._running.wait(_STANDING):
                self._tell()  # once: it may be waited for
                self._running.wait()
            if self._closed.wait(_WATCH_POLL):
                self._tell()
                return
            if not self._running.is_set() or self._main_is_back.is_set():
                continue
            failure = self._look(self._store)
            self._elsewhere.look(self._job_store)
            overdue = self.position.report()
            if failure is None and overdue["seconds"] > self._timeout:
                failure = self._declare(self._store, "waited", f"nothing happened for {self._timeout:g} s")
            if failure is None and overdue["seconds"] > _STANDING:
                self._parting.hear(self._store, self._job_store)
                failure = self._compare_turns() or self._find_ended()
            if failure is not None:
                self._bring_back(failure)

    def _tell(self) -> None:
        with contextlib.suppress(Exception):  # a store that is gone: the next look says so
            self._turns.tell(self._store)

    def _compare_turns(self) -> Report | None:
        """A failure, where this rank stands still for a rank that does something else."""
        self._tell()
        position = self.position
        at, peer = position.at, position.peer
        if not isinstance(at, str) and not position.communicating:
            return None  # it computes
        others = [peer] if peer >= 0 else [rank for rank in range(self._wire.size) if rank != self._wire.rank]
        parted = ""
        with contextlib.suppress(Exception):
            parted = self._turns.parted(self._store, others)
        return self._declare(self._store, "parted", parted) if parted else None

    def _find_ended(self) -> Report | None:
        """A failure, where this rank stands still for one whose process has ended, and never came out of this turn.

        Its sockets may be open all the same, in a process that it has forked. What happened is only known of ranks that
        this one shares memory with.
        """
        position = self.position
        peer = position.peer
        for rank, link in self._wire.links.items():
            if (self._all_together or (rank == peer and position.communicating)) and link.ended:
                with contextlib.suppress(Exception):
                    if not self._turns.is_over(self._store, rank):
                        return self._declare(self._store, "lost", "its process has ended", rank)
        return None

    def _bring_back(self, failure: Report) -> None:
        deadline = time.monotonic() + _GRACE
        self._say_where(self._store, failure)
        self.failure = failure
        self._wake()
        self._elsewhere.look(self._job_store)
        account = None
        if not self._main_is_back.wait(_WATCH_POLL / 4):
            # Ask the others now: who holds the store may not wait for a rank that is stuck.
            self._tell_elsewhere(self._store, failure, head_of(self._wire, failure), is_due_to_one(failure))
            account = self._compose(self._store, failure)
            self._tell_elsewhere(self._store, failure, account.told, account.sure)
        while not self._main_is_back.wait(_WATCH_POLL / 4):
            if not self._running.is_set() or self._closed.is_set():
                return
            self._elsewhere.look(self._job_store)
            if time.monotonic() > deadline:
                self._message = self._in_full(account) if account else ""
                self._leave_state()
                self._wire.give_up(self._message)
                return
            self._wake()

    def _wake(self) -> None:
        """Let the main thread come out of what it waits in for other ranks, if that is where it is.

        Where all are together any of them may be it. What a module, or its replicas, exchange by themselves stays as
        it is: nobody here knows with whom, and by which group.
        """
        if self.position.communicating:
            self._wire.wake(self.position.peer)
        elif self._all_together:
            for rank in range(self._wire.size):
                if rank != self._wire.rank:
                    self._wire.wake(rank)

    # ------------------------------------------------------------- the main thread

    def explain(self, error: BaseException) -> PipelineError:
        """Turn what the main thread caught into the one error that all ranks raise."""
        self._main_is_back.set()
        store = self._own_store
        known = isinstance(error, ConnectionLost)
        text = in_short(error.__cause__ if known and error.__cause__ else error)
        # Or what a module or its replicas have exchanged with ranks of their own.
        lost = known or (isinstance(error, Exception) and self._wire.lost(error))
        failure = self.failure
        if failure is None and isinstance(error, dist.DistError | StoreSilent):
            failure = self._look(store)  # is it the store that is gone, or silent?
        # At once, as there may be no time for more: torchrun ends the other ranks soon after one has died.
        first = failure or self._own_failure("lost" if lost else "raised", text)
        self._announce(first)
        if failure is None and lost:
            failure = self._find_cause(store, first)
        if failure is None:
            failure = self._declare(store, "lost" if lost else "raised", text)
        self.failure = failure
        self._tell_elsewhere(store, failure, head_of(self._wire, failure), is_due_to_one(failure))
        self._say_where(store, failure)
        account = self._compose(store, failure)
        self._tell_elsewhere(store, failure, account.told, account.sure)
        self._message = self._in_full(account)
        self._leave(store, failure)
        self._leave_state()
        return PipelineError(self._message)

    def _find_cause(self, store: Store, lost: Report) -> Report | None:
        """A connection closed: who closed it says why, unless it is dead. Or has: then nothing else is told before."""
        failure = self._look(store)
        if failure is None:
            gone = failed_alone(store, [lost["peer"]] if lost["peer"] >= 0 else [])
            self._tell_elsewhere(store, lost, "; ".join([head_of(self._wire, lost), *gone]), is_due_to_one(lost))
            try:
                store.compare_set("known", "", json.dumps(lost))
            except Exception as unknown:
                self._fate = fate_of(unknown)
        deadline = time.monotonic() + _GATHER
        while failure is None and not self._fate and time.monotonic() < deadline:
            failure = self._look(store)
            time.sleep(_WATCH_POLL / 10)
        # What broke the connection says more than that the store is gone.
        return None if failure is not None and failure["why"] == "store" else failure

    def _tell_elsewhere(self, store: Store, failure: Report, said: str, sure: bool) -> None:
        """Let other pipelines know, whose failure may be due to this one; or, unless it is sure, the other way round.

        `store`: whose of the two this is, the thread's or the main thread's.
        """
        if "alone" not in failure:
            self._elsewhere.tell(self._job_store_of(store), said, sure=sure)

    def _job_store_of(self, store: Store) -> Store:
        """The store of the whole job, for the thread that asks this one: it is not to queue behind the other."""
        return self._job_store if store is self._store else self._own_job_store

    def _announce(self, failure: Report) -> None:
        """Say what is known, in one line."""
        self._announced = True
        self._known = failure
        here = "" if failure["rank"] == self._wire.rank else f"; {self._here} was at {self._where()}"
        self._said = f"pipeline {self._plan.title}: {head_of(self._wire, failure)}{here}{self._before()}"
        say(self._said)

    def _compose_last_words(self) -> str:
        """What this rank says when SIGTERM ends it in a step."""
        if self._announced:
            return ""
        failure = self.failure or self._look(self._store) or self._look(self._store, "known")
        self._elsewhere.look(self._job_store)
        known = "" if failure is None else f"; {head_of(self._wire, failure)}"
        self._known = failure
        self._said = f"pipeline {self._plan.title}: {self._here} was told to end (SIGTERM) at {self._where()}{known}"
        self._said += self._before()
        return self._said

    def _before(self) -> str:
        """What is known to have failed in another pipeline, as the end of a line."""
        return f"; {self._elsewhere.text}" if self._elsewhere.text else ""

    def _leave_state(self) -> None:
        """Write this rank's state file, if it is to leave one."""
        if self._post_mortem is not None:
            self._post_mortem.leave(self._message or self._said, self.failure or self._known, self._answers)

    def _where(self) -> str:
        return str(self.position.report()["where"])

    # ---------------------------------------------------------------------- both

    def _look(self, store: Store, key: str = "failure") -> Report | None:
        """The failure that some rank has declared; under `known`, what may be but its consequence."""
        try:
            if not store.check([key]):
                return None
            failure: Report = json.loads(store.get(key))
        except Exception as error:  # whatever the store's client raises when its server is gone
            self._fate = fate_of(error)
            return {**self._own_failure("store", self._fate), "alone": True}
        return failure

    def _own_failure(self, why: str, text: str) -> Report:
        return {**self._report(), "rank": self._wire.rank, "why": why, "text": text}

    def _report(self) -> Report:
        return {**self.position.report(), "turn": self._turns.label}

    def _declare(self, store: Store, why: str, text: str, peer: int | None = None) -> Report:
        """Set the failure; the one that counts, which is another rank's where that was faster.

        `peer`: which rank it is about, unless it is the one that this rank exchanges something with.
        """
        own = self._own_failure(why, text)
        if peer is not None:
            own["peer"] = peer
        try:
            if self._fate == ENDED:  # torch would say so at length, each time that it is asked
                return {**own, "alone": True}
            winner: Report = json.loads(store.compare_set("failure", "", json.dumps(own)))
        except Exception as error:
            self._fate = fate_of(error)
            return {**own, "alone": True}
        return winner

    def _say_where(self, store: Store, failure: Report) -> None:
        """Publish where this rank stands, once."""
        if "alone" in failure:
            return
        with contextlib.suppress(Exception):
            store.compare_set(f"state/{self._wire.rank}", "", json.dumps(self._report()))

    def _gather(self, store: Store, failure: Report) -> dict[int, Report]:
        """Where the ranks stand, of all that answer in time."""
        states: dict[int, Report] = {}
        expected = set(range(self._wire.size)) - ({failure["peer"]} if failure["why"] == "lost" else set())
        deadline = time.monotonic() + _GATHER
        try:
            while not expected <= states.keys() and time.monotonic() < deadline:
                for rank in range(self._wire.size):
                    if rank not in states and store.check([f"state/{rank}"]):
                        states[rank] = json.loads(store.get(f"state/{rank}"))
                time.sleep(_WATCH_POLL / 10)
        except Exception as error:
            self._fate = fate_of(error)
        return states

    def _leave(self, store: Store, failure: Report) -> None:
        """The process that holds the store goes last, or the others could not read it."""
        if "alone" in failure:
            return
        deadline = time.monotonic() + _GATHER
        with contextlib.suppress(Exception):
            store.set(f"left/{self._wire.rank}", "")
            staying = set(range(self._wire.size)) if self._wire.hosts_store else set()
            while staying and time.monotonic() < deadline:
                staying = {r for r in staying if store.check([f"state/{r}"]) and not store.check([f"left/{r}"])}
                time.sleep(_WATCH_POLL / 10)
            self._elsewhere.leave(self._own_job_store)

    def _compose(self, store: Store, failure: Report) -> Account:
        """What this rank says of a failure, having asked the others where they stand."""
        states = self._answers = {} if "alone" in failure else self._gather(store, failure)
        origin = int(failure["rank"])
        involved = {self._wire.rank, origin}
        unasked = "alone" in failure or bool(self._fate)
        silent = [] if unasked else [r for r in range(self._wire.size) if r not in states and r != self._wire.rank]
        head = head_of(self._wire, failure)
        sure = is_due_to_one(failure)
        if failure["why"] == "lost":
            involved.add(int(failure["peer"]))
        if failure["why"] == "waited":
            culprit = end_of_chain(origin, failure, states)
            involved.add(culprit)
            if culprit != origin and (culprit in silent or culprit in states):
                stands = "does not answer" if culprit in silent else f"stands at {states[culprit]['where']}"
                head += f"; what it waits for leads to {called(self._wire, culprit)}, which {stands}"
                sure = culprit in silent
        if not sure and not unasked:
            missing, sure = self._missing(store, failure, states, silent)
            head += missing
        involved.update(int(states[rank]["peer"]) for rank in list(involved) if rank in states)
        lines = []
        for rank in sorted(involved - {-1}):
            if rank in states:
                stood = states[rank]
                lines.append(f"  {called(self._wire, rank)} was at {stood['where']}, for {stood['seconds']} s")
        alone = failed_alone(store, silent) if silent else []
        if silent:
            names = ", ".join(called(self._wire, rank) for rank in silent)
            lines.append(f"  no answer from {names} (dead, stopped, or not in step())")
            lines += [f"  {each}" for each in alone]
        if silent or failure["why"] in ("waited", "parted"):
            turns = {rank: str(state["turn"]) for rank, state in states.items()}
            lines += self._turns.apart(store, turns, silent)
        if unasked and failure["why"] != "store":
            lines.append(
                f"  the others could not be asked: {self._wire.store_host}, which holds their store, {self._fate}"
            )
        if self._fate and self._parting.text:
            lines.append(f"  before that {self._parting.text}")
        return Account(head, "; ".join([head, *alone]), sure, lines)

    def _in_full(self, account: Account) -> str:
        """The message, with what is known by now of other pipelines."""
        lines = [f"pipeline {self._plan.title}: {account.head}", *account.lines]
        lines += [f"  {self._elsewhere.text}"] if self._elsewhere.text else []
        return "\n".join([*lines, f"  this is {self._here}"])

    def _missing(self, store: Store, failure: Report, states: dict[int, Report], silent: list[int]) -> tuple[str, bool]:
        """Of those that a failure may be due to, where no rank is known to be, who does not answer, or nothing.

        And whether that explains it: it is one of this pipeline, which took part in what has failed.
        """
        asked = waits_for(failure, states, self._wire.ranks)
        anybody = failure["why"] == "lost" and not failure["among"]  # whatever the module does by itself
        own = [rank for rank in silent if anybody or self._wire.ranks[rank] in asked]
        gone = [called(self._wire, rank) for rank in own]
        if not gone:
            others = None if anybody else asked - set(self._wire.ranks)
            gone = [f"global rank {rank}" for rank in self._elsewhere.silent(self._job_store_of(store), others)]
        said = f"; {listed(gone)} {'does' if len(gone) == 1 else 'do'} not answer" if gone else ""
        return said, bool(own) and not anybody


def close_with(owner: Any, watch: Watch) -> None:
    """End the watch's thread when `owner` is dropped, or with the process."""
    weakref.finalize(owner, _close_here, watch, os.getpid())


def _close_here(watch: Watch, process: int) -> None:
    """Not in a child that was forked, which shares what it is woken by."""
    if os.getpid() == process:
        watch.close()
