"""What the rank that holds the store says when something fails there, and who has heard it."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import Mock

import torch.distributed as dist

from pipedsl.runtime import parting
from pipedsl.runtime.parting import Parting

PATIENCE = 50.0  # seconds, where it is not time that runs out


def two_pipelines(monkeypatch: Any, strangers: int = 2) -> tuple[list[Parting], list[Any], Any]:
    """The parts of four ranks in it, the store of each one's pipeline, and that of all."""
    monkeypatch.setattr(parting, "_STAY_FOR_OTHERS", 4 * PATIENCE)
    job = dist.HashStore()
    stores = [dist.HashStore(), dist.HashStore()]
    wires = [
        Mock(size=2, strangers=strangers, ranks=[first, first + 1], hosts_store=first + rank == 0)
        for first in (0, 2)
        for rank in (0, 1)
    ]
    return [Parting(wire, job) for wire in wires], [stores[rank // 2] for rank in range(4)], job


def test_the_host_stays_until_all_of_the_job_have_heard(monkeypatch: Any) -> None:
    """Of its replicas' pipelines, too, which lose their store as well."""
    parts, stores, job = two_pipelines(monkeypatch)
    thread = threading.Thread(target=parts[0].tell, args=(stores[0], job, "rank 0 failed at saving"))
    thread.start()
    deadline = time.monotonic() + PATIENCE
    for rank in (1, 2, 3):
        thread.join(0.1)
        assert thread.is_alive(), rank
        while not parts[rank].text and time.monotonic() < deadline:
            for _ in range(2):  # each counts once
                parts[rank].hear(stores[rank], job)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    elsewhere = "in the pipeline of global ranks 0, 1 rank 0 failed at saving"
    assert [part.text for part in parts] == ["", "rank 0 failed at saving", elsewhere, elsewhere]


def test_a_pipeline_that_is_the_whole_job_asks_no_other(monkeypatch: Any) -> None:
    parts, stores, _ = two_pipelines(monkeypatch, strangers=0)
    thread = threading.Thread(target=parts[0].tell, args=(stores[0], None, "why"))
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not parts[1].text and time.monotonic() < deadline:
        parts[1].hear(stores[0], None)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    parts[2].hear(stores[2], None)
    assert [part.text for part in parts] == ["", "why", "", ""]


def test_what_was_told_before_a_pipeline_was_made_is_not_heard_in_it(monkeypatch: Any) -> None:
    parts, stores, job = two_pipelines(monkeypatch)
    monkeypatch.setattr(parting, "_STAY_FOR_OTHERS", 0.0)
    parts[0].tell(stores[0], job, "why")
    later = Parting(parts[3]._wire, job)
    later.hear(dist.HashStore(), job)
    parts[3].hear(stores[3], job)
    assert (later.text, bool(parts[3].text)) == ("", True)


def test_only_the_host_tells(monkeypatch: Any) -> None:
    parts, stores, job = two_pipelines(monkeypatch)
    parts[1].tell(stores[0], job, "why")
    assert not stores[0].check(["parting"])
