"""Tokens per second of cached FHTM decoding, compared with other decoders of continuous tokens.

    python benchmarks/decode.py [--batch 1] [--out docs/results/decode.json]

All have the same width, depth, heads, number of tokens and batch size, and a flow head of the same size with the same
number of Euler steps: `autoregressive-diffusion-pytorch` with its own cache and head (skipped if not installed), and a
Hugging Face Llama with its own cache and our `Flow`, in inference mode like ours. Ours and the Llama run eagerly and
compiled with the same options. The default size is that of the recipe `shapes-fhtm-3-llama`. Results are medians of
interleaved ratios.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import tmatch as tm
from tmatch.generation import compile_for_sampling
from tmatch.generation.compiled import OPTIONS

CHANNELS, STATES = 16, 3
Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Size:
    """Settings that all decoders share."""

    width: int = 128
    depth: int = 5
    heads: int = 4
    side: int = 4  # rows and columns of tokens
    head_width: int = 128
    head_depth: int = 2
    head_steps: int = 4
    batch: int = 1

    @property
    def tokens(self) -> int:
        """Tokens per image, over all states."""
        return STATES * self.side**2


def ours(backbone: nn.Module, size: Size, compiled: bool = False) -> Run:
    """FHTM-3 on one of our backbones."""
    head = tm.HeadConfig(width=size.head_width, depth=size.head_depth)
    model = tm.build(f"fhtm-{STATES}", backbone, CHANNELS, head).eval()
    if compiled:
        compile_for_sampling(model)
    params = tm.SamplingParams(tm.Euler(size.head_steps))
    return lambda: model.sample((size.side, size.side, CHANNELS), tm.RandomStreams(range(size.batch)), params=params)


def hugging_face(size: Size, compiled: bool = False) -> Run:
    """A Hugging Face Llama with its own cache (static if compiled) and our flow head."""
    from transformers import DynamicCache, LlamaConfig, LlamaModel, StaticCache

    config = LlamaConfig(
        vocab_size=8, hidden_size=size.width, intermediate_size=-(-size.width // 3) * 8, num_hidden_layers=size.depth,
        num_attention_heads=size.heads, num_key_value_heads=size.heads,
    )  # fmt: skip
    llama = LlamaModel(config).eval().requires_grad_(False)
    x_in = nn.Linear(CHANNELS, size.width)
    flow = tm.Flow(tm.FlowHead(CHANNELS, size.width, size.head_width, size.head_depth, timed=False)).requires_grad_(
        False
    )
    if compiled:
        llama.forward, flow.forward = (torch.compile(one, **OPTIONS) for one in (llama.forward, flow.forward))
    params = tm.SamplingParams(tm.Euler(size.head_steps))
    branches = tm.NoGuidance().at(0.0, None)

    @torch.inference_mode()  # as ours
    def run() -> Tensor:
        cache = StaticCache(config, max_cache_len=size.tokens) if compiled else DynamicCache()
        time_cache, drawn = {}, [torch.zeros(size.batch, 1, CHANNELS)]
        for _ in range(size.tokens):
            h = llama(inputs_embeds=x_in(drawn[-1]), past_key_values=cache, use_cache=True).last_hidden_state
            drawn.append(flow(torch.randn(size.batch, 1, CHANNELS), h, None, params, branches, time_cache))
        return torch.cat(drawn[1:], dim=1)

    return run


def autoregressive_diffusion(size: Size) -> Run:
    """`AutoregressiveFlow` of autoregressive-diffusion-pytorch, with its own cache and head."""
    _stand_in_for_torchvision()
    from autoregressive_diffusion_pytorch import AutoregressiveFlow, autoregressive_flow

    autoregressive_flow.tqdm = lambda items, **_: items  # no progress bar
    model = AutoregressiveFlow(
        size.width, max_seq_len=size.tokens, depth=size.depth, heads=size.heads, dim_head=size.width // size.heads,
        mlp_depth=size.head_depth, mlp_width=size.head_width, dim_input=CHANNELS, flow_kwargs={"method": "euler"},
    ).eval()  # fmt: skip
    model.flow.sample = partial(model.flow.sample, num_sample_steps=size.head_steps + 1)
    return lambda: model.sample(batch_size=size.batch)


def _stand_in_for_torchvision() -> None:
    """Stub torchvision, which only the package's trainer uses."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        package, transforms, utils = (ModuleType(f"torchvision{part}") for part in ("", ".transforms", ".utils"))
        package.transforms, package.utils, utils.save_image = transforms, utils, None  # type: ignore[attr-defined]
        sys.modules |= {module.__name__: module for module in (package, transforms, utils)}


def contestants(size: Size, left_out: list[str]) -> dict[str, Run]:
    """All decoders, ours first; unavailable ones are appended to `left_out` with the reason."""
    torch.manual_seed(0)
    shape = (CHANNELS, size.width, size.depth, size.heads)
    runs = {
        "tmatch": ours(tm.Llama(*shape), size),
        "tmatch, compiled": ours(tm.Llama(*shape), size, compiled=True),
        "tmatch, DiT": ours(tm.DiT(*shape, timed=False), size),
        "Hugging Face Llama": hugging_face(size),
        "Hugging Face Llama, compiled": hugging_face(size, compiled=True),
    }
    try:
        runs["autoregressive-diffusion-pytorch"] = autoregressive_diffusion(size)
    except ImportError as error:
        left_out.append(f"autoregressive-diffusion-pytorch: {error}")
    return runs


def seconds(run: Run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure(size: Size, repeats: int) -> dict[str, Any]:
    """Tokens per second, and speed relative to the others."""
    left_out: list[str] = []
    runs = contestants(size, left_out)
    for run in runs.values():
        run()
    turns = [{name: seconds(run) for name, run in runs.items()} for _ in range(repeats)]
    tokens = size.batch * size.tokens
    return {
        **asdict(size),
        "tokens": size.tokens,
        "left_out": left_out,
        "tokens_a_second": {name: round(tokens / statistics.median(turn[name] for turn in turns), 1) for name in runs},
        "times_as_fast_as": {
            own: {
                other: round(statistics.median(turn[other] / turn[own] for turn in turns), 2)
                for other in runs
                if not other.startswith("tmatch")
            }
            for own in ("tmatch", "tmatch, compiled")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in asdict(Size()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    size = Size(**{name: getattr(args, name) for name in asdict(Size())})
    result = {"machine": f"{platform.machine()}, {args.threads} thread(s)", **measure(size, args.repeats)}
    print(json.dumps(result, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
