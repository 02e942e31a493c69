"""Prepare 10,000 images with random kills and restarts: the same bytes, and constant memory.

    python benchmarks/prepare.py [--images 10000] [--kills 5] [--out docs/results/prepare.json]

The images are those of `shapes`; the encoders are AutoencoderTiny of diffusers and a small T5 with random weights, or
those given as options. One run is undisturbed, one is killed (SIGKILL) at random times, and one, on a tenth of the
images, shows whether the peak memory depends on their number.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tmatch.data import ShapeImages
from tmatch.data.images import to_image
from tmatch.data.shards import ShardSet


def build_encoders(folder: Path) -> tuple[str, str]:
    """Save small networks as on the Hub, and return their folders."""
    from diffusers import AutoencoderTiny
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    torch.manual_seed(0)
    AutoencoderTiny().save_pretrained(folder / "autoencoder")
    words = ["<pad>", "</s>", "<unk>", "a", "and", "red", "blue", "green", "circle", "square", "cross", "triangle"]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    config = T5Config(vocab_size=len(words), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    T5EncoderModel(config).save_pretrained(folder / "text")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder / "text")
    return str(folder / "autoencoder"), str(folder / "text")


def write_images(folder: Path, count: int) -> None:
    """Write captioned images as files."""
    folder.mkdir()
    data, lines = ShapeImages(1, count), []
    for k, caption in enumerate(data.captions):
        to_image(data.load([k])[0]).save(folder / f"{k:06}.png")
        lines.append(json.dumps({"file_name": f"{k:06}.png", "text": caption}) + "\n")
    (folder / "metadata.jsonl").write_text("".join(lines))


def command(source: Path, out: Path, encoders: tuple[str, str]) -> list[str]:
    return [
        sys.executable, "-m", "tmatch", "prepare", str(source), "--out", str(out), "--autoencoder", encoders[0],
        "--text", encoders[1], "--size", "32", "--chunk", "512",
    ]  # fmt: skip


def run(line: list[str], seconds: float | None = None) -> tuple[bool, float, float]:
    """Whether a command finished before it was killed, its duration in seconds, and its peak memory in MB."""
    started = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while seconds is None or time.perf_counter() - started < seconds:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            if status:
                raise RuntimeError(f"{' '.join(line)} failed")
            return True, time.perf_counter() - started, usage.ru_maxrss / 1024
        time.sleep(0.02)
    process.kill()
    _, _, usage = os.wait4(process.pid, 0)
    return False, time.perf_counter() - started, usage.ru_maxrss / 1024


def digest(folder: Path) -> str:
    """A digest of the names and contents of all files."""
    total = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{file.relative_to(folder)}\n".encode())
        total.update(file.read_bytes())
    return total.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--autoencoder", help="autoencoder to use instead of the built-in one")
    parser.add_argument("--text", help="text encoder to use instead of the built-in one")
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = build_encoders(folder)
        encoders = args.autoencoder or built[0], args.text or built[1]
        write_images(folder / "few", args.images // 10)
        write_images(folder / "all", args.images)
        _, _, few = run(command(folder / "few", folder / "few-shards", encoders))
        _, alone, peak = run(command(folder / "all", folder / "alone", encoders))
        killed, ended = 0, False
        while not ended:
            ended, _, _ = run(
                command(folder / "all", folder / "killed", encoders),
                rng.uniform(0.15, 0.35) * alone if killed < args.kills else None,
            )
            killed += not ended
        listed = ShardSet(folder / "alone").manifest.shards
        shards = [(folder / "alone" / shard.file).stat().st_size for shard in listed]
        result = {
            "images": args.images,
            "killed": killed,
            "same_bytes": digest(folder / "alone") == digest(folder / "killed"),
            "seconds": round(alone, 1),
            "shards": len(shards),
            "largest_shard_mb": round(max(shards) / 2**20, 2),
            "peak_mb": round(peak),
            "peak_mb_of_a_tenth": round(few),
        }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
