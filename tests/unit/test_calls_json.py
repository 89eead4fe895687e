import json
from pathlib import Path

import pytest

from pipedsl.calls_json import read_calls, write_calls
from pipedsl.diagnostics import DiagnosticError

CASES = Path(__file__).parents[1] / "cases"


@pytest.mark.parametrize("name", ["pp_bugs", "p2p_cases"])
def test_what_is_read_is_written(name: str) -> None:
    for case in json.loads((CASES / f"{name}.json").read_text()):

        def named(call: list) -> list:
            if call[0] == "batch":
                return ["batch", [named(member) for member in call[1]]]
            return call if call[0] == "wait" else [*call[:2], str(call[2])]

        ranks = [[named(call) for call in rank] for rank in case["calls"]["ranks"]]
        assert write_calls(read_calls(case["calls"])) == {"ranks": ranks}


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ([], 'expected {"ranks"'),
        ({"ranks": 3}, 'expected {"ranks"'),
        ({"ranks": [[], {}]}, 'expected {"ranks"'),
        ({"ranks": [[["send", 1, "x"]]]}, "rank 0, call 0: there is no rank 1"),
        ({"ranks": [[], [["push", 0, "x"]]]}, "rank 1, call 0: expected"),
        ({"ranks": [[["wait", -1]]]}, "rank 0, call 0: expected"),
        ({"ranks": [[["wait", True]]]}, "rank 0, call 0: expected"),
        ({"ranks": [[["wait", 10**30]]]}, "rank 0, call 0: expected"),
        ({"ranks": [[["batch", []]]]}, "rank 0, call 0: expected"),
        ({"ranks": [[["batch", [["send", 0, "x"]]]]]}, "a batch takes isend and irecv"),
        ({"ranks": [[["batch", [["batch", []]]]]]}, "rank 0, call 0 (a batch): expected"),
        ({"ranks": [[None]]}, "rank 0, call 0: expected"),
        ({"ranks": [[["isend", "1", "x"]]]}, "rank 0, call 0: expected"),
    ],
)
def test_what_is_no_calls_is_said(document: object, where: str) -> None:
    with pytest.raises(DiagnosticError) as error:
        read_calls(document)
    (only,) = error.value.diagnostics
    assert only.code == "PD103"
    assert where in only.message


def test_no_ranks_at_all() -> None:
    assert len(read_calls({"ranks": []})) == 0
