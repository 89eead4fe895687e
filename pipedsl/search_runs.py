"""Running searches: one after the other or in processes of their own, with answers kept and found again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from pipedsl.library import UsageError
from pipedsl.search_cache import Kept, key_of, load_solution, store_solution
from verify.search.engines import Engine, best_installed
from verify.search.lean import leaner
from verify.search.problem import Infeasible, Orders, Problem
from verify.search.solve import Budget, NothingFound, Proof, Solution, Step, solve

GRACE = 30.0
"""Seconds that processes get to bring what they have after Ctrl-C."""

FOR_MEMORY = 1 / 30
"""The part of a budget that is for less memory at the same value."""

MEMORY_WORK = 0.25
"""As much at least, but for a quarter of a small budget."""

INTERRUPTED = "interrupted"  # how the log of a search ends that Ctrl-C ended


WORK = 60.0
"""The budget where nothing is said: about a minute of one core."""


@dataclass(frozen=True)
class Job:
    """One search. `label`: what to call it where there are several.

    `fixed`: what each rank holds all the time. `start` and `known` as `solve` takes them: orders to begin from, and an
    answer under wider caps.
    """

    problem: Problem
    budget: Budget
    seed: int
    fixed: tuple[Fraction, ...]
    label: str = ""
    start: Orders | None = None
    known: Solution | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job: a solution, or that no order keeps to the caps (`refused`), or nothing.

    `least`: no order of that value has a smaller largest memory.
    """

    seed: int
    solution: Solution | None = None
    least: bool = False
    refused: bool = False
    elapsed: float = 0.0
    cached: bool = False
    interrupted: bool = False


@dataclass(frozen=True)
class News:
    """How a running search stands, in the file's units of time and in seconds."""

    by: str
    value: Fraction | None
    bound: Fraction
    elapsed: float
    label: str

    @property
    def gap(self) -> Fraction | None:
        return None if self.value is None or not self.bound else (self.value - self.bound) / self.bound


@dataclass(frozen=True)
class Effort:
    """How to search: the budget of each job, and where the jobs run, are kept and tell how they stand."""

    budget: Budget
    seed: int = 0
    jobs: int = 1
    cache: Path | None = None
    progress: Callable[[News], None] | None = None

    def part(self, share: float) -> Effort:
        """The same with a part of the budget."""
        return replace(self, budget=self.budget.part(share))

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        return run_jobs(jobs, self.jobs, self.cache, self.progress)


def effort_of(
    work: float | None,
    timeout: float | None,
    seed: int,
    jobs: int,
    cache: Path | None,
    progress: Callable[[News], None] | None,
    engine: Engine | None = "z3",
) -> Effort:
    """What is asked for. With a timeout alone it is the time that ends it. `engine`: None is the best that there is."""
    if work is None:
        work = WORK if timeout is None else max(WORK, 10 * timeout)
    return Effort(Budget(work, timeout, engine or best_installed()), seed, jobs, cache, progress)


def better_bound(solution: Solution, other: Solution) -> Solution:
    """The solution with the bound of another where that is higher; both are of problems that it solves."""
    if other.bound <= solution.bound:
        return solution
    proof = (other.proof or Proof.REFUTATION) if solution.value <= other.bound else None
    return replace(solution, bound=other.bound, proof=proof, argument=other.argument)


def run_jobs(
    jobs: Sequence[Job],
    processes: int = 1,
    cache: Path | None = None,
    progress: Callable[[News], None] | None = None,
) -> list[Outcome]:
    """The outcomes, in the order of the jobs. After Ctrl-C the jobs that have not begun are left out as interrupted."""
    keys = [key_of(job) if cache is not None else "" for job in jobs]
    found: dict[int, Outcome] = {}
    for number, (job, key) in enumerate(zip(jobs, keys, strict=True)):
        known = None if cache is None else load_solution(cache, key, job.problem)
        if known is not None:
            found[number] = Outcome(job.seed, known.solution, least=known.least, elapsed=known.elapsed, cached=True)
    missing = [number for number in range(len(jobs)) if number not in found]
    if processes > 1 and len(missing) > 1:
        fresh = _in_processes([jobs[number] for number in missing], processes, progress)
    else:
        fresh = _one_by_one([jobs[number] for number in missing], progress)
    for number, outcome in zip(missing, fresh, strict=True):
        found[number] = outcome
        if cache is not None and outcome.solution is not None and not outcome.interrupted:
            store_solution(cache, keys[number], Kept(outcome.solution, outcome.least, outcome.elapsed))
    return [found[number] for number in range(len(jobs))]


def run_job(job: Job, progress: Callable[[News], None] | None = None) -> Outcome:
    started = monotonic()

    def tell(step: Step) -> None:
        if progress is not None:
            progress(News(step.by, step.value, step.bound, monotonic() - started, job.label))

    share = max(FOR_MEMORY, min(0.25, MEMORY_WORK / job.budget.work)) if job.budget.work else FOR_MEMORY
    first, rest = job.budget.part(1 - share), job.budget.part(share)
    try:
        solution = solve(
            job.problem, budget=first, seed=job.seed, progress=tell, start=job.start, known=job.known
        )  # fmt: skip
    except Infeasible:
        return Outcome(job.seed, refused=True, elapsed=monotonic() - started)
    except NothingFound:
        return Outcome(job.seed, elapsed=monotonic() - started)
    except ModuleNotFoundError as error:
        needed = {"z3": ("z3", "search"), "ortools": ("CP-SAT", "cpsat")}.get((error.name or "").partition(".")[0])
        if needed is None:
            raise
        raise UsageError(f"this search needs {needed[0]}: pip install 'pipedsl[{needed[1]}]'") from None
    except KeyboardInterrupt:
        return Outcome(job.seed, elapsed=monotonic() - started, interrupted=True)
    if solution.log and solution.log[-1].by == INTERRUPTED:
        return Outcome(job.seed, solution, elapsed=monotonic() - started, interrupted=True)
    if job.budget.seconds is not None:
        rest = replace(rest, seconds=started + job.budget.seconds - monotonic())
    lean = leaner(solution, job.fixed, rest, job.seed)
    return Outcome(
        job.seed, lean.solution, least=lean.least, elapsed=monotonic() - started, interrupted=lean.interrupted
    )


def _one_by_one(jobs: Sequence[Job], progress: Callable[[News], None] | None) -> list[Outcome]:
    found: list[Outcome] = []
    for job in jobs:
        stopped = any(each.interrupted for each in found)
        found.append(Outcome(job.seed, interrupted=True) if stopped else run_job(job, progress))
    return found


def _in_processes(jobs: Sequence[Job], processes: int, progress: Callable[[News], None] | None) -> list[Outcome]:
    started = monotonic()
    # `spawn`: a search may have threads of z3 by now, which a fork would not survive.
    pool = ProcessPoolExecutor(min(processes, len(jobs)), get_context("spawn"), _ignore_interrupts)
    futures = [pool.submit(_interruptible, job) for job in jobs]
    try:
        for job, future in zip(jobs, futures, strict=True):
            solution = future.result().solution
            if progress is not None and solution is not None:
                elapsed = monotonic() - started
                progress(News("process", solution.value, solution.bound, elapsed, job.label))
    except KeyboardInterrupt:
        # Ctrl-C reaches the processes too; those that search come back with what they have.
        for future in futures:
            future.cancel()
    limit = monotonic() + GRACE
    found = [_brought(job, future, limit) for job, future in zip(jobs, futures, strict=True)]
    pool.shutdown(wait=False, cancel_futures=True)
    return found


def _brought(job: Job, future: Future[Outcome], limit: float) -> Outcome:
    with suppress(Exception, KeyboardInterrupt):
        if not future.cancelled():
            return future.result(max(0.0, limit - monotonic()))
    return Outcome(job.seed, interrupted=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interruptible(job: Job) -> Outcome:
    """A job in a process that Ctrl-C ends only while it searches."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run_job(job)
    finally:
        _ignore_interrupts()
