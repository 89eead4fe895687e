"""The orders that PyTorch's own schedule classes make, and the CSV files that they dump. Needs torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

# name: (class, chunks a rank, the least m in multiples of p)
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1, 1),
    "1f1b": ("Schedule1F1B", 1, 1),
    "looped_bfs": ("ScheduleLoopedBFS", 2, 1),
    "interleaved_1f1b": ("ScheduleInterleaved1F1B", 2, 1),
    "interleaved_zero_bubble": ("ScheduleInterleavedZeroBubble", 2, 1),
    "zbv": ("ScheduleZBVZeroBubble", 2, 2),
    "dualpipev": ("ScheduleDualPipeV", 2, 2),
}


def torch_schedule(name: str, p: int, m: int) -> Any:
    """The schedule object as rank 0 would make it; its stages are stand-ins."""
    from torch.distributed.pipelining import schedules

    class_name, chunks, _ = SCHEDULES[name]
    stages = [
        SimpleNamespace(
            num_stages=p * chunks,
            group_size=p,
            group_rank=0,
            stage_index=chunk * p,
            is_last=False,
            submod=SimpleNamespace(modules=list),
        )
        for chunk in range(chunks)
    ]
    make: Any = getattr(schedules, class_name)
    return make(stages[0] if chunks == 1 else stages, m)


def dumped(name: str, p: int, m: int, communication: bool, folder: Path) -> str:
    """What `_dump_csv` writes, or for schedules of one chunk would write. Line ends are CRLF."""
    schedule = torch_schedule(name, p, m)
    if SCHEDULES[name][1] == 1:
        assert not communication, "PyTorch lowers schedules of several chunks only"
        order = schedule._get_pipeline_order()
        rows = (",".join("" if action is None else str(action) for action in order[rank]) for rank in range(p))
        return "".join(f"{row}\r\n" for row in rows)
    file = folder / f"{name}.csv"
    schedule._dump_csv(str(file), "compute_comms" if communication else "compute_only")
    return file.read_bytes().decode()


def loaded(text: str, p: int, m: int, stages: int, communication: bool, folder: Path) -> Any:
    """The schedule that PyTorch's runtime makes of a file; raises what it raises."""
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    file = folder / "loaded.csv"
    file.write_text(text, encoding="utf-8")
    stage = SimpleNamespace(num_stages=stages, group_size=p, group_rank=0, stage_index=0, is_last=False)
    schedule: Any = _PipelineScheduleRuntime([stage], m)  # type: ignore[list-item]
    schedule._load_csv(str(file), "compute_comms" if communication else "compute_only")
    return schedule
