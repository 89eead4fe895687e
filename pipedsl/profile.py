"""Profiles: measured durations and sizes from a JSON file, in place of those of a schedule (docs/formats.md).

What is given in a profile wins; what follows from it by default (B is I + W, W holds the whole activation, gradients
are as large as weights) follows from the profile's values. Sizes are bytes, so a profile that has any leaves nothing
in place of a schedule that counts in activations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NoReturn

from pipedsl.diagnostics import Limits
from pipedsl.library import UsageError, find
from pipedsl.program import Costs, Memory, Program

FORMAT, VERSION = "pipedsl-profile", 1
COSTS = ("F", "B", "I", "W", "send", "REDUCE")
SIZES = ("activation", "held_by_w", "input", "output", "weights", "gradients", "optimizer")
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

Values = tuple[Fraction, ...]


@dataclass(frozen=True)
class Profile:
    """Values by name, in the words of the language: one for all stages (ranks, for `cap`), or one for each."""

    name: str
    costs: Mapping[str, Values] = field(default_factory=dict)
    memory: Mapping[str, Values] = field(default_factory=dict)


def load_profile(path: str, limits: Limits | None = None) -> Profile:
    """The profile in a file. Raises UsageError, with the place in the JSON, for a file that is none."""
    limits = limits or Limits()
    name, data = find(path, limits)
    if len(data) > limits.source_bytes:
        raise UsageError(f"{name}: larger than {limits.source_bytes:,} bytes, the limit of --limit-source-bytes")
    try:
        return read_profile(data.decode("utf-8"), name, limits)
    except UnicodeDecodeError:
        raise UsageError(f"{name}: this is not UTF-8 text") from None


def read_profile(text: str, name: str = "<profile>", limits: Limits | None = None) -> Profile:
    """The profile in a text. Raises UsageError."""
    return _Reader(name, limits or Limits()).profile(text)


def apply_profile(profile: Profile, program: Program) -> Program:
    """The program under a profile's costs and sizes. Raises UsageError where the profile is for other stages."""
    reader = _Fitting(profile.name, program)
    costs = reader.costs(profile.costs) if profile.costs else program.costs
    return replace(program, costs=costs, memory=reader.memory(profile.memory))


@dataclass(frozen=True)
class _Reader:
    """Turns JSON into a Profile, and says where in it something is wrong."""

    name: str
    limits: Limits

    def fail(self, path: str, what: str) -> NoReturn:
        raise UsageError(f"{self.name}: {f'{path}: ' if path else ''}{what}")

    def profile(self, text: str) -> Profile:
        try:
            document = json.loads(
                text, object_pairs_hook=_Pairs, parse_int=_Digits, parse_float=_Digits, parse_constant=_Digits
            )
        except json.JSONDecodeError as error:
            self.fail("", f"line {error.lineno}, column {error.colno}: this is not JSON: {error.msg}")
        except RecursionError:
            self.fail("", "brackets nested too deep")
        top = self.entries(document, "", ("format", "version", "costs", "memory", "about"))
        if top.get("format") != FORMAT:
            self.fail("format", f'a profile begins with "format": "{FORMAT}"')
        if top.get("version") != _Digits(str(VERSION)):
            self.fail("version", f"this pipedsl reads version {VERSION}")
        costs = self.entries(top.get("costs", _Pairs()), "costs", COSTS)
        memory = self.entries(top.get("memory", _Pairs()), "memory", (*SIZES, "cap"))
        return Profile(
            self.name,
            {key: self.values(value, f"costs.{key}", None) for key, value in costs.items()},
            {key: self.values(value, f"memory.{key}", UNITS) for key, value in memory.items()},
        )

    def entries(self, value: Any, path: str, known: Sequence[str]) -> dict[str, Any]:
        """The entries of an object whose keys are among `known`."""
        if not isinstance(value, _Pairs):
            self.fail(path, f"expected an object, not {_kind(value)}")
        found: dict[str, Any] = {}
        for key, each in value:
            at = f"{path}.{key}" if path else key
            if key not in known:
                self.fail(at, f"unknown; known here: {', '.join(known)}")
            if key in found:
                self.fail(at, "given twice")
            found[key] = each
        return found

    def values(self, value: Any, path: str, units: Mapping[str, int] | None) -> Values:
        if isinstance(value, _Pairs) or not isinstance(value, list):
            return (self.number(value, path, units),)
        if not value:
            self.fail(path, "an empty list")
        return tuple(self.number(each, f"{path}[{index}]", units) for index, each in enumerate(value))

    def number(self, value: Any, path: str, units: Mapping[str, int] | None) -> Fraction:
        """A JSON number, or a string: `0.7`, `7/10`, and for sizes `1.5 GiB`. Exact."""
        text = str(value).strip() if isinstance(value, str | _Digits) else ""
        factor = 1
        for unit, size in (units or {}).items():
            if isinstance(value, str) and text.endswith(unit):
                text, factor = text.removesuffix(unit).strip(), size
        if not text or len(text) > self.limits.bits or not text.isascii() or not _small_exponent(text):
            self.fail(path, f"expected a number, not {_kind(value)}")
        try:
            number = Fraction(text) * factor
        except (ValueError, ZeroDivisionError):
            self.fail(path, f"expected a number, not {_kind(value)}")
        if number < 0:
            self.fail(path, f"negative: {text}")
        return number


@dataclass(frozen=True)
class _Fitting:
    """Puts a profile's values in the places of a program's."""

    name: str
    program: Program

    def costs(self, given: Mapping[str, Values]) -> Costs:
        own, stages = self.program.costs, self.program.stages
        found = {key: self.spread(f"costs.{key}", values, stages, "stages") for key, values in given.items()}
        split = (found.get("I", own.backward_input), found.get("W", own.backward_weight))
        whole = own.backward
        if "I" in found or "W" in found:
            whole = tuple(i + w for i, w in zip(*split, strict=True))
        others = (found.get("send", own.send), found.get("REDUCE", own.reduce))
        return Costs(found.get("F", own.forward), found.get("B", whole), *split, *others)

    def memory(self, given: Mapping[str, Values]) -> Memory:
        own, stages, ranks = self.program.memory, self.program.stages, self.program.ranks
        if not given:
            return own
        found = {
            key: self.spread(f"memory.{key}", values, *((ranks, "ranks") if key == "cap" else (stages, "stages")))
            for key, values in given.items()
        }
        none = (Fraction(0),) * stages
        if own.in_bytes:
            rest = {key: getattr(own, key) for key in SIZES}
            if "activation" in found:
                rest["held_by_w"] = found["activation"]
            if "weights" in found:
                rest["gradients"] = found["weights"]
        elif "activation" not in found:
            self.fail("memory", "sizes are bytes, but the schedule counts in activations: give `activation` too")
        else:
            if "cap" not in found and any(cap is not None for cap in own.cap):
                self.fail("memory", "sizes are bytes, but the schedule's cap counts activations: give `cap` too")
            rest = dict.fromkeys(SIZES, none)
            rest |= {"held_by_w": found["activation"], "gradients": found.get("weights", none)}
        sizes = {key: found.get(key, rest[key]) for key in SIZES}
        for stage, (held, whole) in enumerate(zip(sizes["held_by_w"], sizes["activation"], strict=True)):
            if held > whole:
                self.fail("memory.held_by_w", f"of stage {stage}, {held}, is more than its activation, {whole}")
        return Memory(**sizes, cap=found.get("cap", own.cap), in_bytes=True)

    def spread(self, path: str, values: Values, count: int, of: str) -> Values:
        if len(values) not in (1, count):
            self.fail(path, f"{len(values)} values, but the schedule has {count} {of}")
        return values if len(values) == count else values * count

    def fail(self, path: str, what: str) -> NoReturn:
        raise UsageError(f"{self.name}: {path}: {what}")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with every key that the text has, doubled ones too."""


class _Digits(str):
    """A JSON number as it is written."""

    __slots__ = ()


def _small_exponent(text: str) -> bool:
    """Whether a number's exponent, if it has one, makes no number of thousands of digits."""
    _, exponent, power = text.lower().partition("e")
    return not exponent or (power.lstrip("+-").isdecimal() and len(power.lstrip("+-")) <= 2)


def _kind(value: Any) -> str:
    if isinstance(value, _Pairs):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    shown = str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}..."
    return shown if isinstance(value, _Digits) else json.dumps(shown)
