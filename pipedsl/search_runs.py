"""Running searches: one after the other or in processes of their own, with answers kept and found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from time import monotonic

from pipedsl.library import UsageError
from pipedsl.search_cache import Kept, key_of, load_solution, store_solution
from pipedsl.search_processes import in_processes
from verify.search.engines import Engine, best_installed
from verify.search.lean import leaner
from verify.search.problem import Infeasible, Orders, Problem
from verify.search.solve import Aim, Budget, NothingFound, Proof, Solution, Step, solve

FOR_MEMORY = 1 / 30
"""The part of a budget that is for less memory at the same value."""

MEMORY_WORK = 0.25
"""As much at least, but for a quarter of a small budget."""

ROOM = 1 / 4
"""Of a timeout, where messages take memory under a cap: for orders that have room for them; or where a REDUCE may stand
in several places: for what is best with them."""

INTERRUPTED = "interrupted"  # how the log of a search ends that Ctrl-C ended

WORK = 60.0
"""The budget where nothing is said: about a minute of one core."""

MOST_OF_IT = 0.9
"""Of a budget's seconds: who had fewer, as others needed the time, had less than the budget says."""

LEAST_WORK = 0.02
"""What any search may do: the first habits are tried however small its budget, or its part of one, is."""


AT_LEAST = 5.0
"""Seconds that setting up may go on after a timeout, or as long again as that is."""


def patience(timeout: float | None, searches: int = 1) -> Callable[[], None]:
    """Looks at the clock, from now on, while so many searches are set up: raises NothingFound where it is too late.

    Nothing can be answered before; but one that is set up has an order soon.
    """
    if timeout is None:
        return lambda: None
    last = monotonic() + searches * (timeout + max(timeout, AT_LEAST))

    def look() -> None:
        if monotonic() > last:
            raise NothingFound("the time was over long before all operations were there to be searched")

    return look


@dataclass(frozen=True)
class Job:
    """One search. `label`: what to call it where there are several.

    `fixed`: what each rank holds all the time. `start` and `known` as `solve` takes them: orders to begin from, and an
    answer under wider caps. `aim`: what it does most of. `until`: the moment of `monotonic` at which it ends, whatever
    its budget.
    """

    problem: Problem
    budget: Budget
    seed: int
    fixed: tuple[Fraction, ...]
    label: str = ""
    start: Orders | None = None
    known: Solution | None = None
    aim: Aim = Aim.BOTH
    until: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job: a solution, or that no order keeps to the caps (`refused`), or nothing.

    `least`: no order of that value has a smaller largest memory. `lost`: how its process ended that never answered.
    """

    seed: int
    solution: Solution | None = None
    least: bool = False
    refused: bool = False
    elapsed: float = 0.0
    cached: bool = False
    interrupted: bool = False
    lost: str = ""


@dataclass(frozen=True)
class News:
    """How a running search stands, in the file's units of time and in seconds. `said`: in words, in place of that."""

    by: str
    value: Fraction | None
    bound: Fraction
    elapsed: float
    label: str
    said: str = ""

    @property
    def gap(self) -> Fraction | None:
        return None if self.value is None or not self.bound else (self.value - self.bound) / self.bound


@dataclass(frozen=True)
class Effort:
    """How to search: the budget of each job, and where the jobs run, are kept and tell how they stand.

    `asked`: the options of the command that ask for it, where it is not the usual. `until`: as of `Job`, for all.
    """

    budget: Budget
    seed: int = 0
    jobs: int = 1
    cache: Path | None = None
    progress: Callable[[News], None] | None = None
    asked: tuple[str, ...] = ()
    until: float | None = None

    def part(self, share: float) -> Effort:
        """The same with a part of the budget."""
        return replace(self, budget=self.budget.part(share))

    def sooner(self, share: float) -> Effort:
        """The same with a part of the time, where that is limited."""
        seconds = self.budget.seconds
        return replace(self, budget=replace(self.budget, seconds=None if seconds is None else seconds * share))

    def ending(self, share: float) -> Effort:
        """The same, to end when this part of the time that is left has passed."""
        if self.until is None:
            return self
        now = monotonic()
        return replace(self, until=now + max(0.0, self.until - now) * share)

    @property
    def over(self) -> bool:
        return self.until is not None and monotonic() >= self.until

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        timed = [replace(job, until=self.until) for job in jobs]
        return run_jobs(timed, self.jobs, self.cache, self.progress)


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
    options = {"--budget": work, "--timeout": timeout, "--seed": seed or None, "--jobs": jobs if jobs > 1 else None}
    asked = tuple(f"{name} {_short(value)}" for name, value in options.items() if value is not None)
    engine = engine or best_installed()
    if engine != "z3":
        asked += (f"--engine {engine}",)
    if work is None:
        work = WORK if timeout is None else max(WORK, 10 * timeout)
    return Effort(Budget(work, timeout, engine), seed, jobs, cache, progress, asked)


def _short(value: float) -> str:
    """A number that the command line takes for the same one."""
    return str(int(value) if value == int(value) else value)


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
        if cache is not None and outcome.solution is not None and not _is_cut_short(jobs[number], outcome):
            store_solution(cache, keys[number], Kept(outcome.solution, outcome.least, outcome.elapsed))
    return [found[number] for number in range(len(jobs))]


def _is_cut_short(job: Job, outcome: Outcome) -> bool:
    """Whether it had less time than its budget says, and might have found more."""
    seconds, solution = job.budget.seconds, outcome.solution
    over = job.until is not None and monotonic() >= job.until
    shorter = over and seconds is not None and outcome.elapsed < MOST_OF_IT * seconds
    return outcome.interrupted or (shorter and solution is not None and solution.proof is None)


def run_job(job: Job, progress: Callable[[News], None] | None = None) -> Outcome:
    started = monotonic()

    def tell(step: Step) -> None:
        if progress is not None:
            progress(News(step.by, step.value, step.bound, monotonic() - started, job.label))

    budget = within(job.budget, job.until)
    share = max(FOR_MEMORY, min(0.25, MEMORY_WORK / budget.work)) if budget.work else FOR_MEMORY
    first, rest = budget.part(1 - share), budget.part(share)
    first = replace(first, work=max(first.work, LEAST_WORK))
    try:
        solution = solve(
            job.problem, budget=first, seed=job.seed, progress=tell, start=job.start, known=job.known, aim=job.aim
        )
    except Infeasible:
        return Outcome(job.seed, refused=True, elapsed=monotonic() - started)
    except NothingFound:
        return Outcome(job.seed, elapsed=monotonic() - started)
    except ModuleNotFoundError as error:
        raise usage_of_missing(error) from None
    except KeyboardInterrupt:
        return Outcome(job.seed, elapsed=monotonic() - started, interrupted=True)
    if ended_by_interrupt(solution):
        return Outcome(job.seed, solution, elapsed=monotonic() - started, interrupted=True)
    if budget.seconds is not None:
        rest = replace(rest, seconds=started + budget.seconds - monotonic())
    lean = leaner(solution, job.fixed, rest, job.seed)
    return Outcome(
        job.seed, lean.solution, least=lean.least, elapsed=monotonic() - started, interrupted=lean.interrupted
    )


def usage_of_missing(error: ModuleNotFoundError) -> Exception:
    """What to say where an engine is not installed; the error itself where it is about something else."""
    needed = {"z3": ("z3", "search"), "ortools": ("CP-SAT", "cpsat")}.get((error.name or "").partition(".")[0])
    return error if needed is None else UsageError(f"this search needs {needed[0]}: pip install 'pipedsl[{needed[1]}]'")


def within(budget: Budget, until: float | None) -> Budget:
    """The budget with no more seconds than there are until that moment."""
    if until is None:
        return budget
    left = max(0.0, until - monotonic())
    return replace(budget, seconds=left if budget.seconds is None else min(left, budget.seconds))


def ended_by_interrupt(solution: Solution) -> bool:
    return bool(solution.log) and solution.log[-1].by == INTERRUPTED


def _one_by_one(jobs: Sequence[Job], progress: Callable[[News], None] | None) -> list[Outcome]:
    found: list[Outcome] = []
    for job in jobs:
        stopped = any(each.interrupted for each in found)
        found.append(Outcome(job.seed, interrupted=True) if stopped else run_job(job, progress))
    return found


def _in_processes(jobs: Sequence[Job], processes: int, progress: Callable[[News], None] | None) -> list[Outcome]:
    started = monotonic()
    known: dict[int, Outcome] = {}

    def tell(number: int, outcome: Outcome) -> None:
        known[number] = outcome
        if progress is not None and outcome.solution is not None:
            found, elapsed = outcome.solution, monotonic() - started
            progress(News("process", found.value, found.bound, elapsed, jobs[number].label))

    def again(number: int, elapsed: float, alone: bool) -> Job | None:
        job = jobs[number]
        same = [outcome for other, outcome in known.items() if jobs[other].problem == job.problem]
        return None if _decided(same) else _again(job, elapsed, alone)

    found = []
    for job, ended in zip(jobs, in_processes(run_job, jobs, processes, again, tell), strict=True):
        lost = Outcome(job.seed, interrupted=not ended.lost, lost=ended.lost)
        found.append(lost if ended.value is None else ended.value)
    return found


def _decided(outcomes: Sequence[Outcome]) -> bool:
    """Whether searches of one problem have shown, together, that nothing is better than the best of them."""
    solutions = [each.solution for each in outcomes if each.solution is not None]
    bound = max((each.bound for each in solutions), default=None)
    proved = bound is not None and min(each.value for each in solutions) <= bound
    return proved or any(each.refused for each in outcomes)


def _again(job: Job, elapsed: float, alone: bool) -> Job | None:
    """What to try in place of a job whose process was lost; None where that is nothing.

    With a limit of time it is what is left of it, at once, for when the others end it is over; without one, alone,
    when all memory is there for it.
    """
    seconds = job.budget.seconds
    if seconds is None:
        return job if alone else None
    left = within(replace(job.budget, seconds=seconds - elapsed), job.until)
    return replace(job, budget=left) if not alone and left.seconds is not None and left.seconds > 0 else None
