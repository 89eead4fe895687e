"""Every code is explained, and every example says what it is said to."""

import pytest

from pipedsl.api import advise, parse_text, verify, verify_text
from pipedsl.codes import CODES, Example, explanation
from pipedsl.diagnostics import DiagnosticError
from pipedsl.searching import search
from verify import Verdict

NOT_IN_A_SCHEDULE = {"PD101", "PD120", "PD121", "PD122", "PD123", "PD124", "PD303", "PD304", "PD305"}


def found(example: Example) -> tuple[Verdict, set[str]]:
    report = verify_text(example.text, example.params)
    return report.verdict, {diagnostic.code for diagnostic in report.diagnostics}


def advice(example: Example) -> set[str]:
    result = verify(parse_text(example.text), example.params)
    assert (result.verdict, result.diagnostics) == (Verdict.VERIFIED, ())
    return {diagnostic.code for diagnostic in advise(result)}


@pytest.mark.parametrize("code", CODES)
def test_example_fails_with_its_code_and_the_mended_one_is_verified(code: str) -> None:
    explained = explanation(code)
    assert explained.title == CODES[code]
    if code in NOT_IN_A_SCHEDULE:
        assert explained.failing is None
        return
    assert explained.failing is not None
    assert explained.mended is not None
    if code.startswith("PD9"):
        assert (advice(explained.failing), advice(explained.mended)) == ({code}, set())
        return
    if code == "PD602":  # what `search` says, not `verify`
        with pytest.raises(DiagnosticError, match=code):
            search(parse_text(explained.failing.text), explained.failing.params)
        assert search(parse_text(explained.mended.text), explained.mended.params).verdict is Verdict.VERIFIED
        return
    verdict, codes = found(explained.failing)
    assert codes == {code}
    assert verdict is (Verdict.UNKNOWN if code == "PD502" else Verdict.REJECTED)
    assert found(explained.mended) == (Verdict.VERIFIED, set())


def test_unknown_code_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        explanation("PD999")
