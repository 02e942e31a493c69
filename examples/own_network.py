"""Use the DTM kernel with your own network: here a small convolutional one, on 8x8 images of blobs.

    python examples/own_network.py

A backbone is any module with a `width` and a call f(x_t, t, condition) that returns `width` numbers for each token of
x_t (batch, rows, columns, channels). The library provides the rest: training noise, guidance, solvers, seeds.
About half a minute on two CPU cores.
"""

import argparse

import torch
from torch import Tensor, nn

import tmatch as tm


class ConvNet(nn.Module):
    """A network written without transition matching in mind: channels first, with its own time embedding."""

    width = 48

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, self.width), nn.SiLU(), nn.Linear(self.width, self.width))
        self.first = nn.Conv2d(channels, self.width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(self.width, self.width, 3, padding=1) for _ in range(4))

    def forward(self, x_t: Tensor, t: Tensor, condition: tm.Condition | None = None) -> Tensor:
        h = self.first(x_t.movedim(-1, 1)) + self.time(t[:, None])[..., None, None]
        for layer in self.layers:
            h = h + layer(torch.nn.functional.silu(h))
        return h.movedim(1, -1)


def blobs(rng: tm.RandomStreams, size: int = 8) -> Tensor:
    """One bright blob in a dark image, (batch, 1, size, size)."""
    centre = 1.5 + (size - 4) * rng.uniform(2, 1, 1)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    distance = (rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2
    return 2 * torch.exp(-distance / 3).unsqueeze(1) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=500)
    args = parser.parse_args()
    torch.manual_seed(0)

    patchify = tm.Patchify((2, 2))  # 8x8 images to 4x4 tokens of four numbers
    kernel = tm.ParallelFlow(ConvNet(channels=4), tm.Flow(tm.FlowHead(channels=4, context_width=48, width=48, depth=2)))
    model = tm.TransitionMatching(tm.LinearProcess(), tm.Difference(), kernel, tm.Continuous())

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(args.iterations):
        x_T = patchify.encode(blobs(tm.RandomStreams.derive(1, step, 64)))
        loss = model.loss(x_T, tm.RandomStreams.derive(2, step, 64)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    result = tm.generate(model, (4, 4, 4), seeds=range(4), steps=16, progress=True)
    for image in patchify.decode(result.x):
        print(
            "\n".join("".join(" .:*#"[int(v.clamp(-1, 0.99) * 2.5 + 2.5)] * 2 for v in row) for row in image[0]), "\n"
        )
    print(f"{result.evaluations.backbone} backbone and {result.evaluations.head} head evaluations per image")


if __name__ == "__main__":
    main()
