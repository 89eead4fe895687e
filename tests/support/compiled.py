"""Schedules compiled for tests: text to program to calls to a generated file, wherever these calls are safe."""

from __future__ import annotations

from pathlib import Path

from pipedsl.calls import Calls
from pipedsl.diagnostics import DiagnosticError, Source
from pipedsl.emit import emit
from pipedsl.expand import expand
from pipedsl.library import find
from pipedsl.lower import lower
from pipedsl.parser import parse
from pipedsl.program import Program
from pipedsl.simulate import simulate
from verify import check_calls
from verify.layouts import check_layouts

ONE_F_ONE_B = """schedule one_f_one_b(p, m)
stages p
place s -> s
fn warmup(r) = min(p - 1 - r, m)
rank r {
    F * warmup(r)
    (F B) * (m - warmup(r))
    B * warmup(r)
}
"""

SPLIT = """schedule split(p, m)
stages p
place s -> s
rank r { F * m  I * m  W * m }
"""

V_SHAPE = """schedule v_shape(p, m)
stages 2 * p
place s -> s if s < p else 2 * p - 1 - s
rank r { F@0 * m  F@1 * m  B@1 * m  B@0 * m }
"""

LAST_FIRST = """schedule last_first(p, m)
stages p
place s -> s
rank r { for k in 0 .. m { F[m - 1 - k] }  for k in 0 .. m { B[k] } }
"""


# Two copies of the stages, which run the pipeline in opposite directions.
TWO_WAYS = """schedule two_ways(p, m)
stages p
replica down { place s -> s }
replica up { place s -> p - 1 - s }
rank r { F@down * m F@up * m B@down * m B@up * m }
"""
TWO_WAYS_SPLIT = TWO_WAYS.replace("B@down * m B@up * m", "I@down * m I@up * m W@up * m W@down * m")
# The sums of gradients placed: the second chunk's while the first one still runs, each copy's after its last backward.
V_SHAPE_REDUCE = V_SHAPE.replace("B@1 * m  B@0 * m", "B@1 * m  REDUCE@1  B@0 * m  REDUCE@0")
V_SHAPE_REDUCE_LATE = V_SHAPE.replace("B@0 * m", "B@0 * m  REDUCE@1  REDUCE@0")
SPLIT_REDUCE = SPLIT.replace("W * m", "W * m  REDUCE")
REDUCE_FIRST = SPLIT.replace("W * m", "W * m  if r == 0 { REDUCE }")
TWO_WAYS_REDUCE = """schedule two_ways(p, m)
stages p
replica down { place s -> s }
replica up { place s -> p - 1 - s }
fn late(r) = r >= p // 2
rank r {
    F@down * m F@up * m
    if late(r) { B@down * m REDUCE@down B@up * m REDUCE@up } else { B@up * m REDUCE@up B@down * m REDUCE@down }
}
"""
# Communication placed by hand, between two copies.
BY_HAND = """schedule x(p, m)
stages 2
replica down { place s -> s }
replica up { place s -> 1 - s }
rank r where r == 0 {
    (F@down SEND_F@down RECV_F@up F@up B@up SEND_B@up RECV_B@down B@down) * m
}
rank r where r == 1 {
    (F@up RECV_F@down SEND_F@up F@down B@down RECV_B@up SEND_B@down B@up) * m
}
"""
BY_HAND_REDUCE = BY_HAND.replace("B@down) * m", "B@down) * m REDUCE@down REDUCE@up").replace(
    "B@up) * m", "B@up) * m REDUCE@up REDUCE@down"
)
CHIMERA_REDUCE = (Path(__file__).parents[2] / "examples" / "chimera_reduce.sched").read_text(encoding="utf-8")
CHIMERA = (Path(__file__).parents[2] / "examples" / "chimera.sched").read_text(encoding="utf-8")


# The two hangs of PyTorch issue 172668, completed to whole programs: the excerpts stand side by side in them.
SENDS_FIRST = """schedule sends_first(p, m)
stages 4
place s -> s % 2
rank r where r == 0 {
    F@0[0]  SEND_F@0[0]  F@0[1]
    SEND_F@0[1]  RECV_F@1[0]  F@1[0]
    SEND_F@1[0]  RECV_F@1[1]  F@1[1]  SEND_F@1[1]
    RECV_B@1[0]  B@1[0]  SEND_B@1[0]  RECV_B@1[1]  B@1[1]  SEND_B@1[1]
    RECV_B@0[0]  B@0[0]  RECV_B@0[1]  B@0[1]
}
rank r where r == 1 {
    RECV_F@0[0]  F@0[0]
    SEND_F@0[0]  RECV_F@0[1]  F@0[1]
    RECV_F@1[0]  SEND_F@0[1]  F@1[0]  B@1[0]  RECV_F@1[1]  SEND_B@1[0]  F@1[1]  B@1[1]
    RECV_B@0[0]  SEND_B@1[1]  B@0[0]  RECV_B@0[1]  SEND_B@0[0]  B@0[1]  SEND_B@0[1]
}
"""
MIRROR_LOST = """schedule mirror_lost(p, m)
stages 4
place s -> s % 2
rank r where r == 0 {
    F@0[0]  SEND_F@0[0]  F@0[1]  SEND_F@0[1]
    RECV_F@1[0]  F@1[0]  SEND_F@1[0]  RECV_F@1[1]  F@1[1]
    SEND_F@1[1]  F@0[2]  SEND_F@0[2]  RECV_B@1[0]
    B@1[0]  SEND_B@1[0]  RECV_F@1[2]  F@1[2]  SEND_F@1[2]
    RECV_B@1[1]  B@1[1]  SEND_B@1[1]  RECV_B@1[2]  B@1[2]  SEND_B@1[2]
    RECV_B@0[0]  B@0[0]  RECV_B@0[1]  B@0[1]  RECV_B@0[2]  B@0[2]
}
rank r where r == 1 {
    RECV_F@0[0]  F@0[0]  RECV_F@0[1]  F@0[1]
    SEND_F@0[0]  RECV_F@1[0]  SEND_F@0[1]  F@1[0]  B@1[0]
    RECV_F@1[1]  SEND_B@1[0]  F@1[1]  B@1[1]  RECV_F@0[2]
    RECV_B@0[0]  F@0[2]  SEND_F@0[2]  RECV_F@1[2]  F@1[2]  B@1[2]
    SEND_B@1[1]  RECV_B@0[1]  SEND_B@1[2]  RECV_B@0[2]
    B@0[0]  SEND_B@0[0]  B@0[1]  SEND_B@0[1]  B@0[2]  SEND_B@0[2]
}
"""


def source_of(schedule: str) -> Source:
    """The text of a schedule, or of a shipped one by its name."""
    if "\n" in schedule:
        return Source("test.sched", schedule)
    name, data = find(schedule)
    return Source(name, data.decode())


def build(schedule: str, **params: int) -> tuple[Source, Program, Calls]:
    source = source_of(schedule)
    program = expand(parse(source), params)
    return source, program, lower(program, simulate(program))


def admitted(schedule: str, **params: int) -> bool:
    """False where the schedule's own `require` refuses the parameters; anything else that is wrong is raised."""
    try:
        build(schedule, **params)
    except DiagnosticError as error:
        if {each.code for each in error.diagnostics} != {"PD112"}:
            raise
        return False
    return True


def emitted(schedule: str, **params: int) -> str:
    source, program, calls = build(schedule, **params)
    states, _ = check_layouts(program, calls, check_calls(calls, remedies=0).transports)
    return emit(program, calls, source=source, transports=states)


def compile_to(path: Path, schedule: str, **params: int) -> Path:
    path.write_text(emitted(schedule, **params))
    return path
