"""Runs Calls over MPI with synchronous sends.

    mpiexec -n RANKS python mpi_calls.py programs.json results.json SECONDS

`programs.json` is a list of Calls documents of at most RANKS ranks; `results.json` becomes a list with "ends", "hangs"
or "wrong data" for each. A rank hangs when it waits for one call for SECONDS. Needs mpi4py alone.
"""

import json
import sys
import time
from pathlib import Path

from mpi4py import MPI

ENDS, HANGS, WRONG = "ends", "hangs", "wrong data"
_under_way = []  # requests and buffers that no program waits for: MPI uses them to the end


class Rank:
    """One rank of one program, on a communicator of its own, so that what is left over disturbs no other program."""

    def __init__(self, world, calls, tags, seconds):
        self.comm = world.Dup()
        self.calls, self.tags, self.seconds = calls, tags, seconds

    def run(self):
        requests = []
        for call in self.calls:
            if call[0] == "wait":
                if call[1] >= len(requests):
                    return HANGS  # for a request that is never made
                state = self.finish(requests[call[1]])
            else:
                parts = [self.start(part) for part in (call[1] if call[0] == "batch" else [call])]
                if call[0] not in ("send", "recv"):
                    requests.append(parts)
                    continue
                state = self.finish(parts)
            if state != ENDS:
                return state
        return ENDS

    def start(self, call):
        name, peer, tag = call
        number = self.tags[str(tag)]
        if name.endswith("send"):
            data = number.to_bytes(4, "little")
            part = (self.comm.Issend(data, peer, number), data, None)
        else:
            data = bytearray(4)
            part = (self.comm.Irecv(data, peer, number), data, number)
        _under_way.append((part, self.comm))
        return part

    def finish(self, parts):
        deadline = time.monotonic() + self.seconds
        for request, data, number in parts:
            while not request.Test():
                if time.monotonic() > deadline:
                    return HANGS
            if number is not None and int.from_bytes(data, "little") != number:
                return WRONG
        return ENDS


def main():
    programs, results, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    world = MPI.COMM_WORLD
    found = []
    for document in json.loads(programs.read_text()):
        ranks = document["ranks"]
        names = {str(part[2]) for calls in ranks for call in calls if call[0] != "wait"
                 for part in (call[1] if call[0] == "batch" else [call])}  # fmt: skip
        tags = {name: number for number, name in enumerate(sorted(names))}
        rank = Rank(world, ranks[world.rank] if world.rank < len(ranks) else [], tags, seconds)
        states = world.allgather(rank.run())
        found.append(WRONG if WRONG in states else HANGS if HANGS in states else ENDS)
    if world.rank == 0:
        results.write_text(json.dumps(found))
    world.Barrier()
    world.Abort(0)  # ends at once: requests of programs that hang are still open


if __name__ == "__main__":
    main()
