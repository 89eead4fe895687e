"""Train a small byte-level GPT on real English text through a compiled pipeline.

    pipedsl compile zb_h1 -D p=4 -D m=8 -o zb_h1_pipeline.py
    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py zb_h1_pipeline.py

The text is the documentation that every Python carries (`pydoc_data.topics`). Needs torch and the compiled file alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

VOCABULARY = 256
TIMELINE_WIDTH = 96


class Embedding(nn.Module):
    """Bytes (n, sequence) to hidden states (n, sequence, hidden)."""

    def __init__(self, hidden: int, sequence: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, hidden)
        self.position = nn.Parameter(torch.randn(sequence, hidden) * 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position


class Block(nn.Module):
    """One transformer layer: causal attention, then a feed-forward network."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.project = nn.Linear(hidden, hidden)
        self.before_mlp = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, sequence, hidden = x.shape
        qkv = self.qkv(self.before_attention(x)).view(n, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(n, sequence, hidden))
        return x + self.mlp(self.before_mlp(x))


class Head(nn.Module):
    """Hidden states to logits (n, sequence, 256)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.logits = nn.Linear(hidden, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(x))


def build_stages(count: int, layers: int, hidden: int, sequence: int) -> list[nn.Module]:
    """The model in `count` stages of consecutive layers; the same on every rank for the same seed."""
    blocks = [Block(hidden, heads=4) for _ in range(layers)]
    parts = [blocks[layers * s // count : layers * (s + 1) // count] for s in range(count)]
    stages = [nn.Sequential(*part) for part in parts]
    stages[0].insert(0, Embedding(hidden, sequence))
    stages[-1].append(Head(hidden))
    return list(stages)


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(batch_size: int, sequence: int, seed: int) -> Any:
    """Endless (tokens, next tokens), each (batch_size, sequence), the same on every rank."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - sequence - 1, (batch_size,), generator=generator)
        rows = torch.stack([data[s : s + sequence + 1] for s in starts.tolist()])
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def load_pipeline(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("compiled_pipeline", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        sys.exit(f"train_gpt: {path} is not a compiled pipeline; make one with `pipedsl compile`")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def draw_timeline(timelines: Sequence[Sequence[Any]], width: int) -> str:
    """Every rank's operations as they really ran: F digits, B and I small letters, W capitals."""
    begin = min(event.start for events in timelines for event in events)
    scale = width / (max(event.end for events in timelines for event in events) - begin)
    lines = []
    for rank, events in enumerate(timelines):
        row = ["."] * width
        for event in events:
            letter = chr(ord("A" if event.kind == "W" else "a") + event.microbatch % 26)
            mark = str(event.microbatch % 10) if event.kind == "F" else letter
            first = int((event.start - begin) * scale)
            for column in range(first, max(first + 1, int((event.end - begin) * scale))):
                row[min(column, width - 1)] = mark
        lines.append(f"rank {rank} |{''.join(row)}|")
    return "\n".join(lines)


def gather(value: Any) -> list[Any] | None:
    """Everyone's `value` on rank 0, in rank order."""
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, gathered)
    return gathered


def compare_with_one_process(
    whole: nn.Module,
    weights: dict[str, torch.Tensor],
    gradients: dict[str, torch.Tensor],
    batch: torch.Tensor,
    targets: torch.Tensor,
    m: int,
    loss: float,
) -> None:
    """Run the same batch in this process alone and print how far every gradient and the loss are apart."""
    whole.load_state_dict(weights)
    losses = [loss_fn(whole(x), y) for x, y in zip(batch.chunk(m), targets.chunk(m), strict=True)]
    for one in losses:
        (one / m).backward()
    alone = sum(one.item() for one in losses) / m
    print("\nlargest difference of each gradient from one process on the same batch (relative to its largest entry):")
    worst = 0.0
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        difference = (parameter.grad - gradients[name]).abs().max() / parameter.grad.abs().max().clamp_min(1e-30)
        worst = max(worst, difference.nan_to_num(math.inf).item())
        print(f"  {name:<32} {difference.item():.1e}")
    print(
        f"largest of all gradients {worst:.1e}; loss {loss:.6f}, one process {alone:.6f}, apart {abs(loss - alone):.1e}"
    )
    if not (worst <= 1e-4 and abs(loss - alone) <= 1e-4):  # not a number fails, too
        sys.exit("train_gpt: the pipeline's gradients are not those of one process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", help="a file written by `pipedsl compile`")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--microbatch-size", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1

    compiled = load_pipeline(options.pipeline)
    m = compiled.PLAN.microbatches
    torch.manual_seed(0)
    stages = build_stages(compiled.STAGES, options.layers, options.hidden, options.sequence)
    mine = [stages[s].to(device) for s in compiled.stages_of(rank)]
    pipe = compiled.Pipeline(mine, loss_fn=loss_fn, device=device, trace=True)
    optimizer = torch.optim.AdamW([q for stage in mine for q in stage.parameters()], lr=2e-3)
    data = batches(m * options.microbatch_size, options.sequence, seed=1)

    report = rank == compiled.PLAN.placement[-1]  # a rank that knows a loss: of the whole batch, or a copy's part
    if report:
        count = sum(q.numel() for stage in stages for q in stage.parameters())
        print(f"{count:,} parameters, {compiled.STAGES} stages on {last + 1} ranks, {m} microbatches", flush=True)
    started = time.perf_counter()
    for step in range(options.steps + 1):
        batch, targets = (part.to(device) for part in next(data))
        losses = pipe.step(batch, targets)
        if report and step % 10 == 0:
            elapsed = time.perf_counter() - started
            speed = (step + 1) * batch.numel() / elapsed
            print(f"step {step:4d}  loss {losses.mean().item():.3f}  {speed:,.0f} tokens/s", flush=True)
        if step < options.steps:  # the last step's gradients are kept for the comparison
            optimizer.step()
            optimizer.zero_grad()

    named = [(f"{s}.", stages[s]) for s in compiled.stages_of(rank)]
    weights = {prefix + k: v.cpu() for prefix, stage in named for k, v in stage.state_dict().items()}
    grads = {prefix + k: q.grad.cpu() for prefix, stage in named for k, q in stage.named_parameters()}
    timeline = pipe.timeline()
    everyone = gather((weights, grads, [] if losses is None else losses.tolist()))
    if everyone is not None:
        print("\nthe last step as it really ran:")
        print(draw_timeline(timeline.ranks, TIMELINE_WIDTH))
        all_weights = {k: v for part, _, _ in everyone for k, v in part.items()}
        all_grads = {k: v for _, part, _ in everyone for k, v in part.items()}
        loss = sum(value for *_, values in everyone for value in values) / m
        whole = nn.Sequential(*build_stages(compiled.STAGES, options.layers, options.hidden, options.sequence))
        compare_with_one_process(whole, all_weights, all_grads, batch.cpu(), targets.cpu(), m, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
