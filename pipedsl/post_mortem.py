"""The state files that the ranks of a failed step have left, put together: who waits for whom."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipedsl.library import UsageError

_NAME = re.compile(r".+\.rank\d+\.json")
_MOST = 1 << 22  # bytes of a file; ours are a hundredth of that
_MOST_SHOWN = 500  # signs of a text in a line; ours are shorter
_MOST_LINES = 200  # of what a rank said


@dataclass(frozen=True)
class RankState:
    """What one rank left. `since` and `time`: when its call began and when the file was made, in s since 1970, by its
    own clock. `waits_for`: the rank that it exchanged something with, or None. `culprit`: where it heard the failure
    began, or None."""

    run: str
    title: str
    ranks: int
    rank: int
    step: int
    time: float
    call: str
    since: float
    waits_for: int | None
    culprit: int | None
    error: str
    host: str
    pid: int


def read_states(folder: str) -> tuple[dict[str, list[RankState]], list[str]]:
    """The state files of a folder, by pipeline and run, in order of time; and why others are none, in lines.

    UsageError where the folder cannot be read or holds no such files.
    """
    try:
        paths = sorted(path for path in Path(folder).iterdir() if _NAME.fullmatch(path.name))
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    if not paths:
        raise UsageError(f"{folder}: no state files (NAME.rankN.json) in this folder")
    runs: dict[str, list[RankState]] = {}
    problems = []
    for path in paths:
        try:
            state = _read(path)
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path.name}: not a state file: {getattr(error, 'strerror', None) or error}")
            continue
        known = runs.setdefault(state.run, [])
        if any(each.rank == state.rank for each in known):
            problems.append(f"{path.name}: rank {state.rank} of this run has another file")
        else:
            known.append(state)
    ordered = sorted(runs.items(), key=lambda item: min(state.time for state in item[1]))
    return {run: sorted(states, key=lambda state: state.rank) for run, states in ordered}, problems


def ends_of_waiting(waits: Mapping[int, int | None]) -> list[list[int]]:
    """Where following who waits for whom leads: to single ranks that wait for none, or left nothing; or to rounds."""
    found: set[tuple[int, ...]] = set()
    for start in waits:
        path = [start]
        while (following := waits.get(path[-1])) is not None and following not in path:
            path.append(following)
        last = waits.get(path[-1])
        found.add((path[-1],) if last is None else tuple(sorted(path[path.index(last) :])))
    return [list(each) for each in sorted(found)]


def summary(states: Sequence[RankState]) -> list[str]:
    """One run's ranks in lines: where each stood, what all of them wait for, and what they said."""
    first = states[0]
    when = datetime.fromtimestamp(min(state.time for state in states), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f"{first.title}, step {max(state.step for state in states)}, {when}"]
    left = {state.rank: state for state in states}
    odd = {state.rank for state in states if (state.title, state.ranks) != (first.title, first.ranks)}
    end_of_ranks = max(first.ranks, states[-1].rank + 1)
    for missing, state in _gaps(states, end_of_ranks):
        if missing:
            which = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {missing[0]} to {missing[-1]}"
            lines.append(f"  {which}: left no file (killed, stopped, or not in step())")
        if state is None:
            continue
        rank = state.rank
        waits = "" if state.waits_for is None else f", waiting for rank {state.waits_for}"
        other = f"with another file, {state.title}, " if rank in odd else ""
        where = f"{other}at {state.call}{waits}, for {_seconds(state)} s"
        lines.append(f"  rank {rank} ({state.host}, pid {state.pid}): {where}")
    for end in ends_of_waiting({state.rank: state.waits_for for state in states}):
        if len(end) > 1:
            lines.append(f"  ranks {', '.join(map(str, end))} wait for one another")
        elif end[0] not in left:
            lines.append(f"  the waiting leads to rank {end[0]}, which left no file")
        elif any(state.waits_for == end[0] for state in states):
            lines.append(f"  the waiting leads to rank {end[0]}, at {left[end[0]].call}")
    speaker = next((state for state in states if state.culprit == state.rank), first)
    lines.append(f"rank {speaker.rank} said:")
    said = speaker.error.splitlines()
    lines += [f"  {_short(text)}" for text in said[:_MOST_LINES]]
    if len(said) > _MOST_LINES:
        lines.append(f"  ... ({len(said) - _MOST_LINES} more lines)")
    return lines


def _gaps(states: Sequence[RankState], end: int) -> Iterator[tuple[range, RankState | None]]:
    """Each state, by rank, after the ranks before it that left none; at last those up to `end`, with None."""
    following = 0
    for state in states:
        yield range(following, state.rank), state
        following = state.rank + 1
    yield range(following, end), None


def _seconds(state: RankState) -> str:
    return f"{max(0.0, state.time - state.since):.1f}"


def _read(path: Path) -> RankState:
    """ValueError where it is not a state file."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # to open a pipe is to wait for who writes to it
        raise ValueError("a pipe or a device")
    with path.open("rb") as stream:  # raises for a folder
        data = stream.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError("too large")
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("format") != "pipedsl-post-mortem":
        raise ValueError("another format")
    if document.get("version") != 1:
        raise ValueError("of a version that this pipedsl does not know")
    at, params, failure = document.get("at"), document.get("params"), document.get("failure")
    if not isinstance(at, dict) or not isinstance(params, dict):
        raise ValueError("at and params must be objects")
    inner = ", ".join(f"{name}={value}" for name, value in params.items())
    ranks = _whole(document, "ranks")
    state = RankState(
        run=_text(document, "run"),
        title=_short(f"{_text(document, 'schedule')}({inner})"),
        ranks=ranks,
        rank=_whole(document, "rank"),
        step=_whole(document, "step"),
        time=_moment(document, "time"),
        call=_short(_text(at, "call")),
        since=_moment(at, "since"),
        waits_for=None if at.get("waits_for") is None else _whole(at, "waits_for"),
        culprit=_whole(failure, "rank") if isinstance(failure, dict) else None,
        error=_text(document, "error"),
        host=_short(_text(document, "host")),
        pid=_whole(document, "pid"),
    )
    if not 0 < ranks <= 1 << 20:
        raise ValueError("ranks is out of range")
    if not all(each is None or each < ranks for each in (state.rank, state.waits_for, state.culprit)):
        raise ValueError("a rank is out of range")
    return state


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")
    return value


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + " ..."


def _whole(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} must be a whole number")
    return value


def _moment(document: Mapping[str, Any], name: str) -> float:
    """Seconds since 1970, of a time that calendars know."""
    value = document.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e11:
        raise ValueError(f"{name} must be a time")
    return float(value)
