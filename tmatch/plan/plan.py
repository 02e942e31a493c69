"""A plan: what training a model and sampling from it costs on given GPUs."""

from dataclasses import dataclass
from functools import partial
from math import prod

from tmatch.config import MAX_STEPS
from tmatch.generation.config import SamplingConfig
from tmatch.model import Model
from tmatch.plan.devices import Accelerator, bytes_per_number, find_device
from tmatch.plan.memory import Memory, replicated, sharded
from tmatch.plan.meter import Cost
from tmatch.plan.sampling import SamplingCost, sampling_cost
from tmatch.plan.training import Activations, PerNetwork, StateShape, Text, activations, checkpointed, flops, parameters
from tmatch.tensors import Precision, positive_int, require_precision

SPARE = 0.1
"""Fraction of GPU memory left for the CUDA context, NCCL and fragmentation."""
DAY, HOUR = 86_400, 3_600
NETWORKS = ("backbone", "head", "other")


@dataclass(frozen=True)
class Utilisation:
    """Fraction of a device's peak FLOP/s, in a training step and of each network in sampling.

    Large transformers are reported to reach about 0.4 in training on H100s (38 to 43% for Llama 3), communication
    included. For a few images, matrix products may be too small to fill the device: 0.4 then gives a lower bound of
    the time. docs/plan.md has the utilisation that the paper's times imply.
    """

    training: float = 0.4
    backbone: float = 0.4
    head: float = 0.4

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0 < share <= 1:
                raise ValueError(f"utilisation.{name} is a fraction of the peak, in (0, 1]; got {share}.")


@dataclass(frozen=True)
class Plan:
    """Measurements of a model and the resulting cost on `gpus` devices.

    `trained` counts the parameters that require gradients, `flops` is per optimizer step, `memory` per rank by parallel
    strategy, and `activations` without and with checkpointing (None if the backbone has none).
    """

    device: Accelerator
    gpus: int
    batch: int
    micro_batch: int
    steps: int
    tokens_per_image: int
    precision: Precision
    utilisation: Utilisation
    parameters: PerNetwork
    trained: PerNetwork
    flops: PerNetwork
    activations: tuple[Activations, Activations | None]
    memory: dict[str, Memory]
    sampling: SamplingCost

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches per rank and step."""
        return self.batch // (self.gpus * self.micro_batch)

    @property
    def seconds_per_step(self) -> float:
        """Each forward and backward pass of a micro-batch reads the weights once."""
        passes = 2 * self.gradient_accumulation_steps
        each = Cost(sum(self.flops.values()) // (self.gpus * passes), sum(self.parameters.values()))
        return passes * seconds(each, self.device, self.precision, self.utilisation.training)

    @property
    def images_per_second(self) -> float:
        return self.batch / self.seconds_per_step

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_image * self.images_per_second

    @property
    def days(self) -> float:
        return self.steps * self.seconds_per_step / DAY

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.steps * self.seconds_per_step / HOUR

    def sampling_seconds(self, *networks: str) -> float:
        """Return the seconds of all calls of some networks (default: all)."""
        total = 0.0
        for calls in (calls for calls in self.sampling.calls if calls.network in (networks or NETWORKS)):
            share = self.utilisation.head if calls.network == "head" else self.utilisation.backbone
            total += calls.count * seconds(calls.each, self.device, self.precision, share)
        return total

    def fits(self, memory: Memory) -> bool:
        """Return whether this fits on one device."""
        return memory.total <= self.device.memory * (1 - SPARE)

    def largest_micro_batch(self, memory: Memory) -> int:
        """Estimate the largest micro-batch that fits on one device."""
        free = self.device.memory * (1 - SPARE) - (memory.total - memory.activations)
        return max(0, int(free * self.micro_batch / memory.activations))


def seconds(each: Cost, device: Accelerator, precision: Precision, utilisation: float) -> float:
    """max(FLOPs / (peak x utilisation), bytes of weights read / bandwidth)."""
    computing = each.flops / (getattr(device, precision) * utilisation)
    return max(computing, each.weights * bytes_per_number(precision) / device.bandwidth)


def plan(
    model: Model,
    shape: StateShape,
    batch: int,
    device: Accelerator | str,
    gpus: int,
    steps: int,
    *,
    text: Text | None = None,
    gradient_accumulation_steps: int = 1,
    replicas: int = 1,
    precision: Precision = "bfloat16",
    utilisation: Utilisation = Utilisation(),
    sampling: SamplingConfig = SamplingConfig(steps=None),
) -> Plan:
    """Plan `steps` of training for a model built on the meta device, on states of `shape` (*grid, channels).

    `batch` is the batch size over all GPUs and accumulation steps. FSDP2 shards within each of `replicas` groups of
    GPUs. `text` is the length and width of the text embedding; text encoder and autoencoder are not counted. `sampling`
    defaults to the variant's number of steps.
    """
    require_precision(precision)
    device = device if isinstance(device, Accelerator) else find_device(device)
    accumulation = positive_int("The number of accumulation steps", gradient_accumulation_steps)
    parts = positive_int("The number of GPUs", gpus) * accumulation
    _require_plannable(model, positive_int("The batch", batch), parts, gpus, replicas)
    micro_batch, found = batch // parts, dict[str, Memory]()
    sampled = sampling_cost(model, shape, text, sampling)
    once = flops(model, shape, text, micro_batch)
    measure = partial(activations, model, shape, text, micro_batch, precision)
    used = measure(checkpoint=False), measure(checkpoint=True) if checkpointed(model) else None
    for kind, kept in zip(("", ", checkpointing"), used, strict=True):
        if kept is not None:
            found[f"DDP{kind}"] = replicated(model, kept)
            found[f"FSDP2{kind}"] = sharded(model, kept, gpus // replicas, precision, accumulation)
    return Plan(
        device, gpus, batch, micro_batch, positive_int("The number of steps", steps, MAX_STEPS), prod(shape[:-1]),
        precision, utilisation, parameters(model), parameters(model, trained=True),
        {part: parts * count for part, count in once.items()}, used, found, sampled,
    )  # fmt: skip


def _require_plannable(model: Model, batch: int, parts: int, gpus: int, replicas: int) -> None:
    if not all(p.is_meta for p in model.parameters()):
        raise ValueError('Build the model on the meta device: `with torch.device("meta"):`.')
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("No parameter of this model requires gradients: leave out init.freeze.")
    if batch % parts:
        raise ValueError(
            f"A batch of {batch} cannot be divided into {parts} parts ({gpus} GPUs); change --train.batch-size or "
            "--train.gradient-accumulation-steps."
        )
    if gpus % positive_int("The number of replicas", replicas):
        raise ValueError(f"{gpus} GPUs are not divisible into {replicas} replicas.")
