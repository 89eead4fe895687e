"""Canonical text: what it looks like, that it is stable, and that nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import bare, tree

from pipedsl.format import WIDTH, format_schedule

HEAD = "schedule x(p, m)\n"
SCHEDULES = sorted((Path(__file__).parents[2] / "schedules").glob("*.sched"))


def formatted(text: str) -> str:
    before = tree(text)
    out = format_schedule(before)
    after = tree(out)
    assert bare(after.items) == bare(before.items)
    assert [c.text for c in after.comments] == [c.text for c in before.comments]
    assert format_schedule(after) == out
    return out


def body(text: str) -> str:
    """`text` formatted as the rest of a file."""
    return formatted(HEAD + text).removeprefix(HEAD)


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.name)
def test_shipped_schedules_are_canonical(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert formatted(text) == text


def test_spaces_and_blank_lines() -> None:
    text = "\n\n# doc  \nschedule   x ( p,m , v=2 )\n\n\n\nstages p*v   # how many\nplace s->s%p\n  # last\n\n"
    assert formatted(text) == ("# doc\nschedule x(p, m, v = 2)\n\nstages p * v  # how many\nplace s -> s % p\n# last\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stages ((a+b))*c-(d*e)", "stages (a + b) * c - d * e"),
        ("stages a-(b-c)", "stages a - (b - c)"),
        ("stages (a-b)-c", "stages a - b - c"),
        ("stages -(a+b)+(-c)", "stages -(a + b) + -c"),
        ("stages not (a and b) or (not c)", "stages not (a and b) or not c"),
        ("stages (a<b)<c", "stages (a < b) < c"),
        ("stages (a if b else c) if d else (e if f else g)", "stages (a if b else c) if d else e if f else g"),
        ("stages 007+0.50+3.0+80GiB", "stages 7 + 0.5 + 3 + 80 GiB"),
        ('require p>1,"a \\"b\\" \\\\ \\c"', 'require p > 1, "a \\"b\\" \\\\ \\\\c"'),
        ("place ?", "place ?"),
        ("fn f()=1", "fn f() = 1"),
        ("replica up{place s->s}", "replica up { place s -> s }"),
        ("depend F[(k)]@(s) on F[k-1]@(s+1) when(k>0)", "depend F[k]@s on F[k - 1]@(s + 1) when k > 0"),
        ("cost{F=1 I=2}", "cost { F = 1  I = 2 }"),
        ("memory{activation(s)=1 GiB cap(r)=3}", "memory { activation(s) = 1 GiB  cap(r) = 3 }"),
        ("rank r{}", "rank r {}"),
        ("rank r where(r>0){F}", "rank r where r > 0 { F }"),
        ("rank r{F@(k)[(i)]*(2) (F)}", "rank r { F@k[i] * 2 F }"),
        ("rank r{(F B)*(m-1)   (F B) F*r (F I)*r}", "rank r { (F B) * (m - 1) (F B) F * r (F I) * r }"),
        ("rank r{F*m||(I||W)||(B W)}", "rank r { F * m || (I || W) || B W }"),
        ("rank r{F&B*2 (F B)&(I)}", "rank r { F & B * 2 (F B) & I }"),
        ("rank r{if a{F}else{if b{B}}}", "rank r { if a { F } else if b { B } }"),
        ("expect{a==b (-x)<3}", "expect { a == b  (-x < 3) }"),
    ],
)
def test_one_line(text: str, expected: str) -> None:
    assert body(text) == expected + "\n"


def test_blocks_keep_their_lines() -> None:
    text = """rank r {
F*p   (F B)*(m-p)
        B*p

  for k in 0..p { F }   if k { F }
else { B }
  if k {
  F } else { B B }
( F
  I ) * 2
}
expect { peak(r)<=p
 makespan==3   bubble==0 }
cost { F=1  I=1
W=1 }
"""
    assert (
        body(text)
        == """rank r {
    F * p (F B) * (m - p)
    B * p

    for k in 0 .. p { F } if k { F } else { B }
    if k {
        F
    } else {
        B B
    }
    (
        F
        I
    ) * 2
}
expect {
    peak(r) <= p
    makespan == 3
    bubble == 0
}
cost {
    F = 1  I = 1
    W = 1
}
"""
    )


def test_comments_stay_where_they_belong() -> None:
    text = """# above
stages p # behind
fn f(r) = min(r,  # inside
  1)
rank r {# opening
  # first
  F  # after F
  B

  # own

  if k { # then
     F # a
     # end of then
  } # closed
  else { # otherwise
     B }
  # end
} # end of rank
expect { # claims
  a == b # one
  # two
}
# end of file"""
    assert (
        body(text)
        == """# above
stages p  # behind
# inside
fn f(r) = min(r, 1)
rank r {  # opening
    # first
    F  # after F
    B

    # own

    if k {  # then
        F  # a
        # end of then
        # closed
    } else {  # otherwise
        B
    }
    # end
}  # end of rank
expect {  # claims
    a == b  # one
    # two
}
# end of file
"""
    )


def test_a_comment_inside_the_header_does_not_become_documentation() -> None:
    assert formatted("# doc\nschedule x(p, # inside\n  m) # behind\n") == (
        "# doc\nschedule x(p, m)\n# inside\n# behind\n"
    )


def test_long_words_wrap_and_long_blocks_break() -> None:
    out = body("rank r { " + "F_ ".replace("_", "@0[i]") * 30 + "for k in 0 .. 1 { " + "B " * 60 + "} }")
    lines = out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == "rank r {"
    assert "    for k in 0 .. 1 {" in lines
    assert out.count("F@0[i]") == 30
    assert out.count("B") == 60


def test_open_orders_break_before_each_operand() -> None:
    assert body("rank r { F * m ||\n I * m # second\n || (F\n B) * 2 }") == (
        "rank r {\n    F * m\n    || I * m  # second\n    || (\n        F\n        B\n    ) * 2\n}\n"
    )
