"""Accepts or refuses evidence that no order of a search problem is better than a bound; says how good one order is.

    python bound_checker.py bound.json problem.json [program.json]

The problem is what `pipedsl expand --problem` writes, the program what `pipedsl expand --format json` does for the
order that was found. Exit status: 0 accepted, 1 refused, 2 wrong usage. docs/certificate.md describes the format and
argues why what is accepted is true. Needs the standard library and the folder `bound` beside it alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

if not __package__:
    # Run as a file. `verify` is then no more than where `bound` lies: its own `__init__` is part of what is judged.
    sys.modules["verify"] = ModuleType("verify")
    sys.modules["verify"].__path__ = [str(Path(__file__).resolve().parent)]

from verify.bound.certificate import check
from verify.bound.reading import Refused, read


def main(arguments: list[str]) -> int:
    if not 2 <= len(arguments) <= 3:
        print("usage: python bound_checker.py bound.json problem.json [program.json]", file=sys.stderr)
        return 2
    try:
        print("accepted:", check(*map(read, arguments)))
    except (Refused, RecursionError, MemoryError) as error:
        print("refused:", error if isinstance(error, Refused) else "nested too deeply, or too large")
        return 1
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
