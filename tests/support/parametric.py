"""Random schedules whose text depends on m in many ways, right for some m and wrong for others."""

from __future__ import annotations

from random import Random

RANK_FREE = ("m", "p", "1", "2", "3", "m // 2", "m // 3", "m % 2", "m % 3", "m - 1", "p + 1", "5", "7", "11")
IN_RANK = ("r", "p - 1 - r", "2 * r", "2 * (p - 1 - r)", "r % 2", *RANK_FREE)
CONDITIONS = (
    "m > {n}",
    "m < {n}",
    "m == {n}",
    "m % {k} == {j}",
    "m % {k} != {j}",
    "m // {k} > {j}",
    "m >= p",
    "m >= 2 * p",
    "2 * m > 3 * p + {n}",
    "m % 2 == 0 and m > {n}",
    "not m % {k} == 0",
)


def expression(random: Random, atoms: tuple[str, ...] = IN_RANK, depth: int = 2) -> str:
    """A number in m, p and, with the default atoms, r."""
    if depth == 0 or random.random() < 0.3:
        return random.choice(atoms)
    a, b = (expression(random, atoms, depth - 1) for _ in range(2))
    return random.choice(
        (
            f"({a} + {b})",
            f"({a} - {b})",
            f"min({a}, {b})",
            f"max({a}, {b})",
            f"({a}) * {random.randint(0, 2)}",
            f"({a}) // {random.randint(1, 4)}",
            f"({a}) % {random.randint(1, 4)}",
            f"({a} if {condition(random)} else {b})",
        )
    )


def condition(random: Random) -> str:
    k = random.randint(2, 4)
    return random.choice(CONDITIONS).format(n=random.randint(1, 24), k=k, j=random.randrange(k))


def clipped(random: Random) -> str:
    return f"min(max(0, {expression(random)}), m)"


def _one_f_one_b(random: Random) -> str:
    enough = f"min(p - 1 - r + max(0, {expression(random, RANK_FREE)}), m)"
    warm = random.choice((enough, clipped(random)))
    if random.random() < 0.3:
        return f"let w = {warm}  F * w (F I W) * (m - w) (I W) * w"
    return f"let w = {warm}  F * w (F B) * (m - w) B * w"


def _zero_bubble(random: Random) -> str:
    late = random.choice(("r", "min(r, m)", clipped(random)))
    return f"let w = min(p - 1 - r, m) let d = min({late}, m - w) F * w (F I) * d (F I W) * (m - w - d) (I W) * w W * d"


def _gpipe(random: Random) -> str:
    back = random.choice(("B * m", "for k in 0 .. m { B[m - 1 - k] }", "for k in 0 .. m { B[(k + 1) % m] }", "I*m W*m"))
    ahead = random.choice(("F * m", "for k in 0 .. m { F[k] }", f"for k in 0 .. m {{ {_in_loop(random, 'F')} }}"))
    return f"{ahead} {back}"


def _in_loop(random: Random, kind: str) -> str:
    test = random.choice(
        ("k < {n}", "k % {k} == 0", "k == {n}", "k < m - {n}", "2 * k < m", "k >= m // 2", "k + {n} > m")
    )
    test = test.format(n=random.randint(0, 9), k=random.randint(2, 3))
    index = random.choice(("k", "k", "k", "m - 1 - (m - 1 - k)", "(k + m) % m", "k // 1", "k + 1 - 1"))
    other = random.choice((f"{kind}[{index}]",) * 4 + (f"{kind}[m - 1 - k]", f"{kind}[k - 1]"))
    return f"if {test} {{ {kind}[{index}] }} else {{ {other} }}"


def _groups(random: Random) -> str:
    g = random.randint(1, 4)
    tail = random.choice((f"F * (m % {g}) B * (m % {g})", f"F * (m - m // {g} * {g}) B * (m % {g})", ""))
    body = random.choice((f"F * {g} B * {g}", f"(F B) * {g}", f"F * {g} for j in 0 .. {g} {{ B }}"))
    return f"{random.choice((f'for k in 0 .. m // {g} {{ {body} }}', f'({body}) * (m // {g})'))} {tail}"


def _two_in_one(random: Random) -> str:
    """1F1B as one loop over all operations."""
    warm = random.choice(("p - 1 - r", "2 * (p - 1 - r)", "p - 1 - r + m // 4"))
    return (
        f"let w = min({warm}, m) for k in 0 .. m + w {{ if k < m {{ F }} if k >= w {{ B }} }}"
        if random.random() < 0.7
        else f"let w = min({warm}, m) for k in 0 .. m + w {{ if k < m {{ F[k] }} if k >= w {{ B[k - w] }} }}"
    )


PLAIN = (_one_f_one_b, _one_f_one_b, _zero_bubble, _gpipe, _groups, _two_in_one)


def _interleaved(random: Random) -> str:
    extra = random.choice(("0", "0", "1", "m // 3", clipped(random)))
    return (
        f"let w = min(2 * (p - 1 - r) + (v - 1) * p + {extra}, m * v)\n"
        "for k in 0 .. w { F@(k // p % v) }\n"
        "for k in 0 .. m * v - w { F@((k + w) // p % v) B@(v - 1 - k // p % v) }\n"
        "for k in m * v - w .. m * v { B@(v - 1 - k // p % v) }"
    )


def schedule(random: Random) -> tuple[str, int]:
    """A text and the number of ranks to try it with."""
    p = random.randint(1, 4)
    if random.random() < 0.12:
        head = "schedule random(p, m, v = 2)\nstages p * v\nplace s -> s % p\n"
        if random.random() < 0.8:
            head += "require m % p == 0\n"
        word = _interleaved(random)
    else:
        head = "schedule random(p, m)\nstages p\nplace s -> s\n"
        if random.random() < 0.3:
            head += f"require {condition(random)}\n"
        kind = random.choice(PLAIN)
        word = kind(random)
        if random.random() < 0.3:
            other = random.choice((kind, random.choice(PLAIN)))(random)
            if random.random() < 0.5:
                other = word.replace("B * w", "B * (w + 1)", 1) if random.random() < 0.5 else word + " F"
            word = f"if {condition(random)} {{ {word} }} else {{ {other} }}"
    text = head + f"rank r {{\n{word}\n}}\n"
    if random.random() < 0.4:
        text += _costs(random)
    if random.random() < 0.3:
        text += f"memory {{ cap(r) = {random.choice(('m', 'p', 'p + 3', '20', 'p + m // 2', 'm + p'))}"
        text += random.choice(("", "  held_by_w(s) = 1/2", "  activation(s) = s + 1", "  weights(s) = 1")) + " }\n"
    if random.random() < 0.6:
        text += f"expect {{ {_claim(random)} }}\n"
    return text, p


def _costs(random: Random) -> str:
    names = random.sample(("F", "I", "W", "send"), random.randint(1, 4))
    values = [random.choice(("1", "2", "1/2", "3", "0", "1 + s % 2", "2 - s % 2", "10 + s", "3/7")) for _ in names]
    return "cost s { " + " ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True)) + " }\n"


def _claim(random: Random) -> str:
    n = random.randint(1, 30)
    made = random.choice(
        (
            "peak(r) <= p",
            "peak(r) == min(p - r, m)",
            "peak(r) <= m",
            f"peak(r) <= {n}",
            f"peak(0) < m // 2 + {n}",
            f"makespan <= 3 * m + {n}",
            "makespan == 3 * (m + p - 1)",
            "makespan == (m + p - 1) * (F + B)",
            "makespan >= m * (F + B)",
            "makespan <= (m + p) * (F + B) + 2 * p * send",
            "bubble == (p - 1) / (m + p - 1)",
            f"bubble <= 1 / {random.randint(1, 5)}",
            f"span <= 3 * m + {n}",
            "span_bubble <= 1/2",
            f"memory(r) <= m + {n}",
        )
    )
    return made + (f" when {condition(random)}" if random.random() < 0.4 else "")
