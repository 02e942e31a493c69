"""The training step of our DiT against that of diffusers' PixArt, of the same sizes.

    python benchmarks/train_dit.py [--width 384] [--depth 6] [--out docs/results/train_dit.json]

Forward, squared error, backward and fused AdamW, in turns with each other and with a large float32 matrix product;
eager against eager and compiled against compiled. Both read 256 tokens of 2 x 2 x 4 numbers, the time, and a caption
with a mask. Medians of ratios of neighbours.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import PixArtTransformer2DModel
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import tmatch as tm
from tmatch.patch import Patchify

SIDE, LATENT, CHANNELS, TEXT = 1024, 32, 4, (77, 768)
"""Of the matrices; of a latent, and its channels; length and width of a caption."""


class Ours(nn.Module):
    """A DiT that reads a latent and predicts one."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patch = Patchify((2, 2))
        backbone = tm.DiT(4 * CHANNELS, width, depth, heads, condition_width=TEXT[1])
        self.kernel = tm.build("fm", backbone, 4 * CHANNELS).kernel

    def forward(self, x: Tensor, t: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        states = self.patch.encode(x)
        return self.patch.decode(self.kernel.readout(self.kernel.backbone(states, t, tm.Condition(text, mask))))


class PixArt(nn.Module):
    """The same by diffusers."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.network = PixArtTransformer2DModel(
            num_attention_heads=heads, attention_head_dim=width // heads, in_channels=CHANNELS, out_channels=CHANNELS,
            num_layers=depth, cross_attention_dim=width, sample_size=LATENT, patch_size=2, caption_channels=TEXT[1],
            use_additional_conditions=False,
        )  # fmt: skip

    def forward(self, x: Tensor, t: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        return self.network(
            x, text, timestep=1000 * t, encoder_attention_mask=mask,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False,
        )[0]  # fmt: skip


def trained(network: nn.Module, batch: int, compiled: bool) -> Callable[[], None]:
    """A step of a network's training, on one batch made here."""
    noise = tm.Noise(range(batch))
    x, target, text = (
        noise.normal(CHANNELS, LATENT, LATENT),
        noise.normal(CHANNELS, LATENT, LATENT),
        noise.normal(*TEXT),
    )
    t, mask = noise.uniform(), torch.arange(TEXT[0]) < torch.arange(20, 20 + batch)[:, None]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    call = torch.compile(network) if compiled else network

    def step() -> None:
        (call(x, t, text, mask) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure(width: int, depth: int, heads: int, batch: int, repeats: int, compiled: bool) -> dict[str, float]:
    torch.manual_seed(0)
    networks = Ours(width, depth, heads), PixArt(width, depth, heads)
    ours, pixart = (trained(network, batch, compiled) for network in networks)
    with FlopCounterMode(display=False) as counter:
        trained(networks[0], batch, False)()
    a, b = tm.Noise(range(2)).normal(SIDE, SIDE)
    for warm_up in (ours, pixart):
        warm_up()
    turns = [(seconds(ours), seconds(pixart), seconds(lambda: a @ b)) for _ in range(repeats)]
    step, other, product = (statistics.median(column) for column in zip(*turns, strict=True))
    rates = [counter.get_total_flops() / turn[0] / (2 * SIDE**3 / turn[2]) for turn in turns]
    return {
        "images_a_second": round(batch / step, 2),
        "images_a_second_pixart": round(batch / other, 2),
        "ratio": round(statistics.median(turn[1] / turn[0] for turn in turns), 3),
        "gflops_a_second": round(counter.get_total_flops() / step / 1e9, 1),
        "matmul_gflops_a_second": round(2 * SIDE**3 / product / 1e9, 1),
        "share_of_matmul": round(statistics.median(rates), 3),
        "parameters": sum(p.numel() for p in networks[0].parameters()),
        "parameters_pixart": sum(p.numel() for p in networks[1].parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="leave the compiled ones out")
    parser.add_argument("--out", type=Path, help="also write the result there")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = {key: getattr(args, key) for key in ("width", "depth", "heads", "batch", "repeats")}
    results = {
        name: measure(**sizes, compiled=name == "compiled")
        for name in (["eager"] if args.eager else ["eager", "compiled"])
    }
    text = json.dumps({**sizes, "threads": args.threads, "text": TEXT, **results}, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
