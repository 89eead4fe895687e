"""Hostile inputs: mutations of real texts. `import fuzz` from any test (`pythonpath` in pyproject.toml)."""

from __future__ import annotations

import random

# Pieces that steer a mutation towards the interesting corners of the language.
_PIECES = [
    *"( ) { } [ ] , = == -> .. || & @ ? * + - / // % < > <= != # \" \\ ' : ; ! ^ ** \n \r \t \0".split(" "),
    *"schedule require stages place replica fn rank cost memory expect minimize subject to depend".split(),
    *"for in if else let where when on and or not true false True F B I W SEND_F RECV_B OFFLOAD REDUCE".split(),
    *"0 1 2 7 0.5 1. 99999999999999999999 10000000 80 GiB p m r s k x min(p, m) (p - 1) peak(r) * m".split(" "),
    "F@0[1]",
    "é",
    "\ufeff",
    "\x00",
    "# comment\n",
]


def mutate(rng: random.Random, text: str) -> bytes:
    """The text with one to six random edits: pieces inserted, cut, swapped or repeated, bytes changed."""
    data = text.encode()
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + int(rng.expovariate(0.2)) + 1)
        match rng.randrange(7):
            case 0:
                data = data[:at] + rng.choice(_PIECES).encode() + data[at:]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:at] + rng.choice(_PIECES).encode() + data[end:]
            case 3:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 4:
                other = rng.randrange(len(data) + 1)
                data = data[:other] + data[at:end] + data[other:]
            case 5:
                lines = data.split(b"\n")
                i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[i], lines[j] = lines[j], lines[i]
                data = b"\n".join(lines)
            case _:
                data = data[:at] + data[at:end] * rng.randint(2, 30) + data[end:]
    return data


def garbage(rng: random.Random, length: int = 200) -> bytes:
    """Random bytes, or random pieces of the language in no order."""
    if rng.random() < 0.3:
        return rng.randbytes(rng.randrange(length))
    return " ".join(rng.choice(_PIECES) for _ in range(rng.randrange(length))).encode()
