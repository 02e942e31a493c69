"""Training speed of our DiT compared with diffusers' PixArt of the same size.

    python benchmarks/train_dit.py [--sizes 384x6x120 384x6x300] [--eager] [--out docs/results/train_dit.json]
    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 benchmarks/train_dit.py --threads 1 [the same]

A size is width x depth x text length. A step is forward, squared error, backward and fused AdamW; steps of both
networks alternate with each other and with a large float32 matrix product, eager with eager and compiled with compiled.
Both get the same inputs: 8 latents of 256 tokens (2 x 2 x 4 numbers each), times, and captions of 8 to 23 tokens padded
to the text length and masked. PixArt's pipelines pad to 120 (alpha) or 300 (Sigma).

Under torchrun each process trains a replica on its own 8 latents and synchronizes once per step, whereas threads
synchronize in every operation. The matmul rate is then the larger of two: all processes at once, and one process on the
same number of threads.

`ratio` compares steps on padded text, `ratio_trimmed` steps on text cut to the longest caption of the batch for both,
and `ratio_to_padded` our step on cut text with PixArt's on padded text. `ratio_of_the_floor` uses only the matrix
products and the attention of the padded step and bounds `ratio`. `ratio_at_the_matmul_rate` assumes that all operations
of our step, attention included, run at the matmul rate. All are medians of ratios within one turn. PixArt has one layer
that ours lacks, width^2 per word, at most 2% of a step.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from diffusers import PixArtTransformer2DModel
from flops import flops
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import tmatch as tm
from tmatch.codec.patch import Patchify
from tmatch.ranks import rank_and_world_size
from tmatch.train import TrainConfig
from tmatch.train.distributed import Distributed
from tmatch.train.launch import init_distributed

SIDE, PRODUCTS = 1024, 30
"""Size of the matrices; products timed in a row, about half a second."""
LATENT, CHANNELS, TEXT = 32, 4, 768
"""Size and channels of a latent; width of a caption embedding."""
TOKENS = (LATENT // 2) ** 2
SIZES = ("384x6x120", "384x6x300", "768x3x120", "1024x2x120")
Action = Callable[[], object]
ALONE = Distributed()


@dataclass(frozen=True)
class Size:
    """Settings that both networks share."""

    width: int
    depth: int
    text: int
    batch: int = 8

    @classmethod
    def of(cls, name: str) -> Self:
        """The size of a name such as 384x6x300."""
        return cls(*map(int, name.split("x")))

    @property
    def heads(self) -> int:
        return self.width // 64

    def mask(self) -> Tensor:
        """Mask of captions of different lengths."""
        return torch.arange(self.text) < torch.linspace(8, 23, self.batch)[:, None]


class Ours(nn.Module):
    """A DiT that reads a latent and predicts one."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.patch = Patchify((2, 2))
        backbone = tm.DiT(4 * CHANNELS, size.width, size.depth, size.heads, condition_width=TEXT)
        self.kernel = tm.build("fm", backbone, 4 * CHANNELS).kernel

    def forward(self, x: Tensor, t: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        states = self.patch.encode(x)
        return self.patch.decode(self.kernel.readout(self.kernel.backbone(states, t, tm.Condition(text, mask))))


class PixArt(nn.Module):
    """The same with diffusers."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.network = PixArtTransformer2DModel(
            num_attention_heads=size.heads, attention_head_dim=size.width // size.heads, in_channels=CHANNELS,
            out_channels=CHANNELS, num_layers=size.depth, cross_attention_dim=size.width, sample_size=LATENT,
            patch_size=2, caption_channels=TEXT, use_additional_conditions=False,
        )  # fmt: skip

    def forward(self, x: Tensor, t: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        return self.network(
            x, text, timestep=1000 * t, encoder_attention_mask=mask,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False,
        )[0]  # fmt: skip


def trained(
    network: nn.Module, size: Size, compiled: bool = False, trim: bool = False, processes: Distributed = ALONE
) -> Action:
    """A training step on one fixed batch."""
    rng, mask = tm.RandomStreams(range(size.batch)), size.mask()
    x, target = (rng.normal(CHANNELS, LATENT, LATENT) for _ in range(2))
    text, t = rng.normal(size.text, TEXT), rng.uniform()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    fast = cast("nn.Module", torch.compile(network, dynamic=False)) if compiled else network
    call = processes.prepare(fast, [])

    def step() -> None:
        given = tm.Condition(text, mask)
        if trim:
            given = given.trimmed()
        (call(x, t, given.tokens, given.mask) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def products(rows: int, read: int, written: int) -> Action:
    """Matrix products of a linear layer and its gradients, into preallocated memory."""
    x, w, y = torch.randn(rows, read), torch.randn(written, read), torch.randn(rows, written)
    y_out, x_grad, w_grad = (torch.empty_like(one) for one in (y, x, w))
    return lambda: (torch.mm(x, w.t(), out=y_out), torch.mm(y, w, out=x_grad), torch.mm(y.t(), x, out=w_grad))


def attention(size: Size, keys: int, mask: Tensor | None = None) -> Action:
    """Attention from every token to `keys` positions, forward and backward."""
    q, k, v = (
        torch.randn(size.batch, size.heads, n, size.width // size.heads, requires_grad=True)
        for n in (TOKENS, keys, keys)
    )
    return lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask).backward(q.detach())


def floor(size: Size) -> Action:
    """Only the matrix products and the attention of the blocks."""
    tokens, words, width = size.batch * TOKENS, size.batch * size.text, size.width
    block = [
        products(tokens, width, 3 * width), attention(size, TOKENS), products(tokens, width, width),
        products(tokens, width, width), products(words, width, 2 * width),
        attention(size, size.text, size.mask()[:, None, None]), products(tokens, width, width),
        products(tokens, width, 4 * width), products(tokens, 4 * width, width),
    ]  # fmt: skip

    def run() -> None:
        for _ in range(size.depth):
            for part in block:
                part()

    return run


def seconds(action: Action, processes: Distributed) -> float:
    """Seconds until all processes finish."""
    processes.barrier()
    started = time.perf_counter()
    action()
    processes.barrier()
    return time.perf_counter() - started


def multiplications(processes: Distributed) -> dict[str, Action]:
    """Large matrix products: by all processes at once, and by one process on all threads."""
    a, b, c = tm.RandomStreams(range(3)).normal(SIDE, SIDE)
    threads = torch.get_num_threads()

    def multiply(times: int = PRODUCTS) -> None:
        for _ in range(times):
            torch.mm(a, b, out=c)

    def alone() -> None:
        if processes.rank == 0:
            torch.set_num_threads(threads * processes.world)
            multiply(PRODUCTS * processes.world)
            torch.set_num_threads(threads)

    return {"at once": multiply} if processes.world == 1 else {"at once": multiply, "alone": alone}


def measure(size: Size, repeats: int, compiled: bool, processes: Distributed) -> dict[str, float]:
    torch.manual_seed(0)
    torch._dynamo.reset()  # shapes compiled earlier would become dynamic
    networks = {"ours": Ours(size), "pixart": PixArt(size)}
    operations = processes.world * flops(trained(networks["ours"], size))
    products = multiplications(processes)
    actions: dict[str, Action] = {"floor": floor(size), **products}
    for name, network in networks.items():
        actions[name] = trained(network, size, compiled, processes=processes)
        actions[f"{name}, trimmed"] = trained(copy.deepcopy(network), size, compiled, trim=True, processes=processes)
    for warm_up in actions.values():
        warm_up()
    turns = [{name: seconds(action, processes) for name, action in actions.items()} for _ in range(repeats)]
    multiplied, images = processes.world * PRODUCTS * 2 * SIDE**3, processes.world * size.batch
    for turn in turns:  # our operations at the faster matmul rate
        turn["full rate"] = min(turn[name] for name in products) * operations / multiplied
    took = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}

    def ratio(slower: str, faster: str) -> float:
        return round(statistics.median(turn[slower] / turn[faster] for turn in turns), 3)

    return {
        "images_a_second": round(images / took["ours"], 2),
        "images_a_second_pixart": round(images / took["pixart"], 2),
        "images_a_second_trimmed": round(images / took["ours, trimmed"], 2),
        "images_a_second_trimmed_pixart": round(images / took["pixart, trimmed"], 2),
        "images_a_second_of_the_floor": round(images / took["floor"], 2),
        "ratio": ratio("pixart", "ours"),
        "ratio_trimmed": ratio("pixart, trimmed", "ours, trimmed"),
        "ratio_to_padded": ratio("pixart", "ours, trimmed"),
        "ratio_of_the_floor": ratio("pixart", "floor"),
        "ratio_at_the_matmul_rate": ratio("pixart", "full rate"),
        "gflops_a_second": round(operations / took["ours"] / 1e9, 1),
        "matmul_gflops_a_second": round(operations / took["full rate"] / 1e9, 1),
        "share_of_matmul": ratio("full rate", "ours"),
        "parameters": sum(p.numel() for p in networks["ours"].parameters()),
        "parameters_pixart": sum(p.numel() for p in networks["pixart"].parameters()),
    }


def compare(size: Size, repeats: int, eager: bool = False, processes: Distributed = ALONE) -> dict[str, Any]:
    """Eager and, unless `eager`, compiled."""
    ways = ["eager"] if eager else ["eager", "compiled"]
    results = {way: measure(size, repeats, way == "compiled", processes) for way in ways}
    return {**asdict(size), "heads": size.heads, "tokens": TOKENS, **results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=Size.of, default=[Size.of(name) for name in SIZES])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads per process")
    parser.add_argument("--eager", action="store_true", help="skip compiled networks")
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    processes = init_distributed(TrainConfig(steps=1, batch_size=rank_and_world_size()[1], device="cpu"))
    sizes = [compare(size, args.repeats, args.eager, processes) for size in args.sizes]
    if processes.rank == 0:
        how = {"repeats": args.repeats, "processes": processes.world, "threads": args.threads}
        text = json.dumps({**how, "sizes": sizes}, indent=2)
        print(text)
        if args.out is not None:
            args.out.write_text(text + "\n")
    processes.drain()


if __name__ == "__main__":
    main()
