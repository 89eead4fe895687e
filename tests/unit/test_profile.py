"""Profiles: what they change, what they leave, and what is said of bad ones."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipedsl.api import load, parse_text, verify
from pipedsl.cli.main import cli
from pipedsl.library import UsageError
from pipedsl.profile import Profile, load_profile, read_profile
from verify import Verdict

ROOT = Path(__file__).resolve().parents[2]
HEAD = '"format": "pipedsl-profile", "version": 1'
PARAMS = {"p": 2, "m": 4}


def profile(**blocks: object) -> Profile:
    return read_profile(json.dumps({"format": "pipedsl-profile", "version": 1, **blocks}))


def program(text: str, given: Profile):
    head = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m I * m W * m }\n"
    found = verify(parse_text(head + text), PARAMS, profile=given).program
    assert found is not None
    return found


def test_numbers_are_exact() -> None:
    text = f'{{{HEAD}, "costs": {{"F": 0.1, "I": "1/3", "W": ["0.7", 1e2], "send": "2.5e-3"}}}}'
    costs = program("", read_profile(text)).costs
    assert costs.forward == (Fraction(1, 10),) * 2
    assert costs.backward_input == (Fraction(1, 3),) * 2
    assert costs.backward_weight == (Fraction(7, 10), Fraction(100))
    assert costs.backward == (Fraction(1, 3) + Fraction(7, 10), Fraction(1, 3) + 100)
    assert costs.send == (Fraction(1, 400),) * 2


def test_what_is_not_given_stays() -> None:
    costs = program("cost { F = 5 B = 9 send = 1 }", profile(costs={"F": 2})).costs
    assert (costs.forward[0], costs.backward[0], costs.send[0]) == (2, 9, 1)
    assert program("cost { B = 9 }", profile(costs={"W": 3})).costs.backward == (4, 4)


def test_sizes_are_bytes() -> None:
    memory = program("", profile(memory={"activation": "1.5 GiB", "weights": [1024, "2 KiB"], "cap": "80 GiB"})).memory
    assert memory.in_bytes
    assert memory.activation == (3 * 2**29,) * 2
    assert memory.held_by_w == memory.activation
    assert memory.weights == memory.gradients == (1024, 2048)
    assert memory.cap == (80 * 2**30,) * 2
    assert memory.optimizer == memory.input == memory.output == (0, 0)


def test_sizes_of_a_schedule_in_bytes_stay_where_they_are_not_given() -> None:
    text = "memory { activation(s) = 4 MiB held_by_w(s) = 1 MiB weights(s) = 2 MiB cap(r) = 1 GiB }"
    memory = program(text, profile(memory={"activation": "8 MiB"})).memory
    assert (memory.activation[0], memory.held_by_w[0], memory.weights[0]) == (2**23, 2**23, 2**21)
    assert memory.cap[0] == 2**30


def test_claims_about_the_own_durations_are_passed_over_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(f'{{{HEAD}, "costs": {{"F": 10, "I": 7, "W": 5, "send": 1}}}}')
    result = verify(load("zb_h1"), {"p": 4, "m": 8}, profile=load_profile(str(path)))
    assert result.verdict is Verdict.VERIFIED
    assert (result.claims, result.unchecked_claims) == (4, 2)
    assert result.metrics is not None
    assert result.metrics.makespan > 8 * 22
    done = CliRunner().invoke(cli, ["verify", "zb_h1", "-D", "p=4", "-D", "m=8", "--profile", str(path)])
    assert done.exit_code == 0
    assert f"  profile           {path}\n" in done.output
    assert "2 of 4 hold, 2 not checked: about the schedule's own durations, not the profile's\n" in done.output


def test_claims_about_memory_are_checked_with_the_profile() -> None:
    head = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m B * m }\n"
    schedule = parse_text(head + "expect { memory(r) <= 5 }")
    assert verify(schedule, PARAMS).verdict is Verdict.VERIFIED
    found = verify(schedule, PARAMS, profile=profile(memory={"activation": 2}))
    assert [each.code for each in found.diagnostics] == ["PD501"]


def test_claims_about_activations_are_about_the_own_sizes() -> None:
    given = profile(memory={"activation": 4, "held_by_w": 1})
    result = verify(load("zb_h1"), {"p": 4, "m": 8}, profile=given)
    assert result.verdict is Verdict.VERIFIED
    assert result.metrics is not None
    assert result.metrics.peak_activations == (4, Fraction(13, 4), Fraction(5, 2), Fraction(7, 4))


def test_claims_for_all_costs_still_are() -> None:
    head = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m B * m }\n"
    schedule = parse_text(head + "expect { makespan == m * F }")
    assert verify(schedule, PARAMS, profile=profile(costs={"F": 3})).verdict is Verdict.REJECTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<profile>: line 1, column 1: this is not JSON: Expecting value"),
        ("[1]", "<profile>: expected an object, not a list"),
        ("{}", '<profile>: format: a profile begins with "format": "pipedsl-profile"'),
        ('{"format": "pipedsl-profile", "version": 2}', "<profile>: version: this pipedsl reads version 1"),
        (f'{{{HEAD}, "cots": {{}}}}', "<profile>: cots: unknown; known here: format, version, costs, memory, about"),
        (f'{{{HEAD}, "costs": {{"X": 1}}}}', "<profile>: costs.X: unknown; known here: F, B, I, W, send"),
        (f'{{{HEAD}, "costs": {{"F": 1, "F": 2}}}}', "<profile>: costs.F: given twice"),
        (f'{{{HEAD}, "costs": {{"F": [1, true]}}}}', "<profile>: costs.F[1]: expected a number, not true"),
        (f'{{{HEAD}, "costs": {{"F": []}}}}', "<profile>: costs.F: an empty list"),
        (f'{{{HEAD}, "costs": {{"F": {{}}}}}}', "<profile>: costs.F: expected a number, not an object"),
        (f'{{{HEAD}, "costs": {{"F": -1}}}}', "<profile>: costs.F: negative: -1"),
        (f'{{{HEAD}, "costs": {{"F": NaN}}}}', "<profile>: costs.F: expected a number, not NaN"),
        (f'{{{HEAD}, "costs": {{"F": "1 GiB"}}}}', '<profile>: costs.F: expected a number, not "1 GiB"'),
        (f'{{{HEAD}, "costs": {{"F": 1e999999999}}}}', "<profile>: costs.F: expected a number, not 1e999999999"),
        (f'{{{HEAD}, "costs": {{"F": "1/0"}}}}', '<profile>: costs.F: expected a number, not "1/0"'),
        (f'{{{HEAD}, "costs": {{"F": [1, 2, 3]}}}}', "<profile>: costs.F: 3 values, but the schedule has 2 stages"),
        (f'{{{HEAD}, "costs": 3}}', "<profile>: costs: expected an object, not 3"),
        (
            f'{{{HEAD}, "memory": {{"cap": [1, 2, 3], "activation": 1}}}}',
            "memory.cap: 3 values, but the schedule has",
        ),
        (f'{{{HEAD}, "memory": {{"weights": 1}}}}', "counts in activations: give `activation` too"),
        (f'{{{HEAD}, "memory": {{"activation": 1, "held_by_w": 2}}}}', "of stage 0, 2, is more than its activation, 1"),
        ("[" * 100_000, "<profile>: brackets nested too deep"),
        (f'{{{HEAD}, "costs": {{"F": {"9" * 5000}}}}}', "<profile>: costs.F: expected a number, not 9999"),
    ],
)
def test_bad_profiles(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        program("", read_profile(text))
    assert message in str(caught.value)


def test_a_cap_in_activations_does_not_go_with_bytes() -> None:
    with pytest.raises(UsageError, match="the schedule's cap counts activations: give `cap` too"):
        program("memory { cap(r) = 4 }", profile(memory={"activation": 100}))


@pytest.mark.parametrize("command", ["verify", "show", "expand", "compile"])
def test_every_command_takes_one(command: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / "profile.json"
    extra = ("-o", str(tmp_path / "x.py")) if command == "compile" else ()
    arguments = [command, "1f1b", "-D", "p=4", "-D", "m=8", *extra, "--profile"]
    assert CliRunner().invoke(cli, [*arguments, str(example)]).exit_code == 0
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"\xff")
    done = CliRunner().invoke(cli, [*arguments, str(bad)])
    assert (done.exit_code, done.output) == (2, f"error: {bad}: this is not UTF-8 text\n")
    assert CliRunner().invoke(cli, [*arguments, str(tmp_path / "none.json")]).exit_code == 2


def test_peaks_of_claims_are_those_of_the_files_own_sizes() -> None:
    """I gives back a half under this profile, so the peak falls below p, but the text says nothing of that."""
    given = profile(memory={"activation": 2, "held_by_w": 1})
    result = verify(load("zb_h1"), {"p": 4, "m": 8}, profile=given)
    assert result.verdict is Verdict.VERIFIED
    assert result.metrics is not None
    assert min(result.metrics.peak_activations) < 4
