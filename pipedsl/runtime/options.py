"""What a job gives to make a pipeline of, made sense of before there are others who can be told what is wrong."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist

from pipedsl.runtime.post_mortem import post_mortem_folder
from pipedsl.runtime.wire import TorchWire, Wire, choose_device

USUAL_TIMEOUT = 300.0  # seconds


@dataclass
class Options:
    """`modules`: this rank's stages; `folder`: of state files. `problem`: what is wrong here, in words, if anything.

    `error`: what came out of the job's own objects. Where it is set, the rest is only good for telling the others.
    """

    modules: list[torch.nn.Module] = field(default_factory=list)
    timeout: float = USUAL_TIMEOUT
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    folder: str = ""
    problem: str = ""
    error: BaseException | None = None


def understand(
    modules: Any, timeout: Any, device: Any, folder: str | os.PathLike[str] | None, group: dist.ProcessGroup | None
) -> Options:
    """What is given, as it is to be used; whatever is wrong with it is for later to raise, with the others told."""
    options = Options()
    try:
        options.folder = post_mortem_folder(folder)
        options.timeout, untimely = _seconds(timeout)
        options.modules, problem = _modules(modules)
        options.device, absent = (choose_device(options.modules, group), "") if device is None else _device(device)
        options.problem = problem or untimely or absent
    except BaseException as error:
        options.error = error
    return options


def join(group: Any, options: Options) -> Wire:
    """What connects this rank with the others of a group, the default one for None; or the group, where it is a wire.

    RuntimeError and TypeError where this process has no part in it, so that nobody waits for it there.
    """
    if group is None or isinstance(group, dist.ProcessGroup):
        return TorchWire(group, options.device, options.timeout)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise RuntimeError("this process is not in the process group that the Pipeline was given")
    if not hasattr(group, "isend"):
        raise TypeError(f"process_group must be a torch.distributed.ProcessGroup, not a {type(group).__name__}")
    wire: Wire = group
    return wire


def _modules(given: Any) -> tuple[list[torch.nn.Module], str]:
    """The stage modules as a list, and what is wrong with them."""
    if isinstance(given, torch.nn.Module):
        return [given], ""
    if not isinstance(given, Iterable) or isinstance(given, str):
        return [], f"stage_modules must be a torch.nn.Module or a list of them, not a {type(given).__name__}"
    modules = list(given)
    for each in modules:
        if not isinstance(each, torch.nn.Module):
            return [], f"stage_modules must be torch.nn.Modules, not a {type(each).__name__}"
    return modules, ""


def _device(given: Any) -> tuple[torch.device, str]:
    """A device, by number where there are several, and what is wrong with it; then one to meet the others with."""
    device = torch.device(given)
    if device.type != "cuda":
        return device, ""
    count = torch.cuda.device_count()
    if not count:
        return torch.device("cpu"), f"the device is to be {given}, but torch finds no CUDA device here"
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        return torch.device("cpu"), f"the device is to be {given}, but torch finds {count} CUDA devices here, from 0 on"
    return torch.device("cuda", index), ""


def _seconds(given: Any) -> tuple[float, str]:
    """A timeout, and what is wrong with it; then one to meet the others with, who are to know."""
    is_number = isinstance(given, Real)
    if is_number and 0 < given <= threading.TIMEOUT_MAX:
        return float(given), ""
    most = f"{threading.TIMEOUT_MAX:.0f}"
    return USUAL_TIMEOUT, f"timeout must be a number of seconds, more than 0 and at most {most}, not {given!r:.40}"
