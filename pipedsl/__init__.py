"""Pipeline-parallel training schedules as text: proved, and compiled to torch.distributed.

What users need is here by name; it is loaded on first use, so that importing one part stays light.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; `typing` itself would be half of the time that this takes to load

if TYPE_CHECKING:
    from pipedsl.api import (
        Result,
        advise,
        load,
        load_calls,
        load_csv,
        parse_text,
        verify,
        verify_calls,
        verify_program,
        verify_text,
    )
    from pipedsl.calls import CallKind
    from pipedsl.claims import ClaimCounts
    from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits
    from pipedsl.library import UsageError, shipped
    from pipedsl.occupancy import Part
    from pipedsl.parametric import ForAll, prove_for_all, prove_for_all_in
    from pipedsl.profile import Profile, load_profile
    from pipedsl.program import Kind
    from pipedsl.sched_text import program_text
    from pipedsl.search_answer import SearchResult
    from pipedsl.search_runs import News
    from pipedsl.searching import search
    from pipedsl.simulate import Metrics
    from pipedsl.sweeping import SweepPoint, sweep
    from verify import dependency_graph, mend_calls, mend_program
    from verify.certificate import certificate
    from verify.report import Report, Verdict
    from verify.search.solve import NothingFound

__all__ = [
    "CallKind",
    "ClaimCounts",
    "Diagnostic",
    "DiagnosticError",
    "ForAll",
    "Kind",
    "Limits",
    "Metrics",
    "News",
    "NothingFound",
    "Part",
    "Profile",
    "Report",
    "Result",
    "SearchResult",
    "SweepPoint",
    "UsageError",
    "Verdict",
    "advise",
    "certificate",
    "dependency_graph",
    "load",
    "load_calls",
    "load_csv",
    "load_profile",
    "mend_calls",
    "mend_program",
    "parse_text",
    "program_text",
    "prove_for_all",
    "prove_for_all_in",
    "search",
    "shipped",
    "sweep",
    "verify",
    "verify_calls",
    "verify_program",
    "verify_text",
]

__version__ = "0.1.0"

_HOMES = {
    "CallKind": "pipedsl.calls",
    "ClaimCounts": "pipedsl.claims",
    "ForAll": "pipedsl.parametric",
    "prove_for_all": "pipedsl.parametric",
    "prove_for_all_in": "pipedsl.parametric",
    "Kind": "pipedsl.program",
    "program_text": "pipedsl.sched_text",
    "certificate": "verify.certificate",
    "dependency_graph": "verify",
    "mend_calls": "verify",
    "mend_program": "verify",
    "Metrics": "pipedsl.simulate",
    "Part": "pipedsl.occupancy",
    "Profile": "pipedsl.profile",
    "load_profile": "pipedsl.profile",
    "Diagnostic": "pipedsl.diagnostics",
    "DiagnosticError": "pipedsl.diagnostics",
    "Limits": "pipedsl.diagnostics",
    "UsageError": "pipedsl.library",
    "shipped": "pipedsl.library",
    "News": "pipedsl.search_runs",
    "NothingFound": "verify.search.solve",
    "SearchResult": "pipedsl.search_answer",
    "search": "pipedsl.searching",
    "SweepPoint": "pipedsl.sweeping",
    "sweep": "pipedsl.sweeping",
    "Report": "verify.report",
    "Verdict": "verify.report",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pipedsl' has no attribute {name!r}")
    from importlib import import_module

    home = _HOMES.get(name, "pipedsl.api")
    if home.split(".")[0] == "verify" or home == "pipedsl.api":
        check_verifier()
    return getattr(import_module(home), name)


def check_verifier() -> None:
    """Say plainly when some other module named `verify` hides the verifier. Raises ImportError."""
    from importlib import import_module

    module = import_module("verify")
    if not hasattr(module, "TRANSPORTS"):
        where = getattr(module, "__file__", None) or "a folder without __init__.py"
        raise ImportError(
            f"another module named `verify` hides the verifier of pipedsl: {where}. "
            "Rename it, or start from a folder that does not hold it."
        )
