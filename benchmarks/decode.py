"""Tokens a second of cached FHTM decoding, against other ways to decode continuous tokens, in turns.

    python benchmarks/decode.py [--batch 1] [--out docs/results/decode.json]

All have the same width, depth, heads, number of tokens, batch, and a flow head of the same size that takes the same
number of Euler steps: `autoregressive-diffusion-pytorch` (pip install it; it is left out where it is not there), and a
Hugging Face Llama with its own cache, which drives the same head as ours. Medians of ratios, interleaved.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tmatch as tm

CHANNELS, WIDTH, DEPTH, HEADS = 16, 512, 8, 8
STATES, GRID = 3, (8, 8)
HEAD = tm.HeadConfig(width=512, depth=3)
STEPS = 4


def ours(backbone: torch.nn.Module, batch: int) -> Callable[[], Tensor]:
    """FHTM-3 on a backbone of ours."""
    model = tm.build("fhtm-3", backbone, CHANNELS, HEAD).eval()
    decoding = tm.Decoding(tm.Euler(STEPS))
    return lambda: model.sample((*GRID, CHANNELS), tm.Noise(range(batch)), decoding=decoding)


def hugging_face(batch: int, tokens: int) -> Callable[[], Tensor]:
    """A Hugging Face Llama with its cache, token by token, and our head."""
    from transformers import DynamicCache, LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=8, hidden_size=WIDTH, intermediate_size=8 * WIDTH // 3, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, num_key_value_heads=HEADS,
    )  # fmt: skip
    llama = LlamaModel(config).eval()
    x_in = torch.nn.Linear(CHANNELS, WIDTH)
    head = tm.FlowHead(CHANNELS, WIDTH, HEAD.width, HEAD.depth, timed=False).eval()

    @torch.no_grad()
    def run() -> Tensor:
        cache, token, drawn = DynamicCache(), torch.zeros(batch, 1, CHANNELS), []
        for _ in range(tokens):
            h = llama(inputs_embeds=x_in(token), past_key_values=cache, use_cache=True).last_hidden_state
            context, token = head.prepare(h, None), torch.randn(batch, 1, CHANNELS)
            for k in range(STEPS):
                token = token + head(token, torch.tensor(k / STEPS), context) / STEPS
            drawn.append(token)
        return torch.cat(drawn, dim=1)

    return run


def autoregressive_diffusion(batch: int, tokens: int) -> Callable[[], Tensor]:
    """`AutoregressiveFlow` of autoregressive-diffusion-pytorch, with its own cache and head."""
    from autoregressive_diffusion_pytorch import AutoregressiveFlow, autoregressive_flow

    autoregressive_flow.tqdm = lambda items, **_: items  # no progress bar
    model = AutoregressiveFlow(
        WIDTH, max_seq_len=tokens, depth=DEPTH, heads=HEADS, dim_head=WIDTH // HEADS, mlp_depth=HEAD.depth,
        mlp_width=HEAD.width, dim_input=CHANNELS, flow_kwargs={"method": "euler"},
    ).eval()  # fmt: skip
    model.flow.sample = partial(model.flow.sample, num_sample_steps=STEPS + 1)
    return lambda: model.sample(batch_size=batch)


def seconds(run: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    tokens = STATES * GRID[0] * GRID[1]
    runs: dict[str, Callable[[], Tensor]] = {
        "tmatch, Llama": ours(tm.Llama(CHANNELS, WIDTH, DEPTH, HEADS), args.batch),
        "tmatch, DiT": ours(tm.DiT(CHANNELS, WIDTH, DEPTH, HEADS, timed=False), args.batch),
        "Hugging Face Llama": hugging_face(args.batch, tokens),
    }
    try:
        runs["autoregressive-diffusion-pytorch"] = autoregressive_diffusion(args.batch, tokens)
    except ImportError as error:
        print(f"autoregressive-diffusion-pytorch is left out: {error}")
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.repeats):
        for name, run in runs.items():
            times[name].append(seconds(run))
    first = times["tmatch, Llama"]
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {args.threads} thread(s)",
        "batch": args.batch,
        "tokens": tokens,
        "tokens_a_second": {n: round(args.batch * tokens / statistics.median(t), 1) for n, t in times.items()},
        "times_as_fast_as": {
            name: round(statistics.median(other / own for other, own in zip(taken, first, strict=True)), 3)
            for name, taken in times.items()
            if name != "tmatch, Llama"
        },
    }
    print(json.dumps(result, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
