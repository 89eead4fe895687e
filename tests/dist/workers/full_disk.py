"""The faults of `faults.py` where no file may grow beyond 2 KiB, as on a disk that fills up."""

from __future__ import annotations

import resource

from tests.dist.workers.faults import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
    main()
