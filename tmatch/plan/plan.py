"""A plan: what training a model and drawing from it would take on some GPUs, before any of it is allocated."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from tmatch.model import Model
from tmatch.plan.devices import Device, device_of, width
from tmatch.plan.memory import Memory, replicated, sharded
from tmatch.plan.meter import Cost, checkpointed
from tmatch.plan.sampling import Draw, Sampling, sampling
from tmatch.plan.training import Activations, Parts, Shape, Text, activations, flops, parameters
from tmatch.tensors import Precision, positive_int, require_precision

SPARE = 0.1
"""The share of a GPU's memory left for the CUDA context, NCCL and fragments."""
DAY, HOUR = 86_400, 3_600


@dataclass(frozen=True)
class Utilisation:
    """The share of a device's peak that is reached: by a training step, and by each network when an image is drawn.

    0.4 in training is what large transformers are reported to reach on H100s (38 to 43% for Llama 3), waiting for other
    ranks included. When a few images are drawn, products may be too small to fill the device, and 0.4 makes a bound,
    not a forecast. Measure your own and put it here; docs/plan.md has what the paper's times imply.
    """

    training: float = 0.4
    backbone: float = 0.4
    head: float = 0.4

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0 < share <= 1:
                raise ValueError(f"The utilisation in {name} is a share of the peak, in (0, 1]; got {share}.")


@dataclass(frozen=True)
class Plan:
    """What was measured of a model, and what it comes to on `gpus` devices.

    `trained` are those of the `parameters` that training changes, `flops` those of a whole step of it by part, `memory`
    the bytes on one rank by way of distributing them, and `activations` what those take of it, without checkpointing
    and, where the backbone has it, with (else None).
    """

    device: Device
    gpus: int
    batch: int
    micro_batch: int
    steps: int
    tokens: int
    precision: Precision
    utilisation: Utilisation
    parameters: Parts
    trained: Parts
    flops: Parts
    activations: tuple[Activations, Activations | None]
    memory: dict[str, Memory]
    sampling: Sampling

    @property
    def accumulate(self) -> int:
        """Micro-batches a rank computes one after the other in a step."""
        return self.batch // (self.gpus * self.micro_batch)

    @property
    def seconds_a_step(self) -> float:
        """Of the optimizer; forward and backward of each micro-batch read the weights once."""
        passes = 2 * self.accumulate
        each = Cost(sum(self.flops.values()) // (self.gpus * passes), sum(self.parameters.values()))
        return passes * seconds(each, self.device, self.precision, self.utilisation.training)

    @property
    def images_a_second(self) -> float:
        return self.batch / self.seconds_a_step

    @property
    def tokens_a_second(self) -> float:
        return self.tokens * self.images_a_second

    @property
    def days(self) -> float:
        """To the last step."""
        return self.steps * self.seconds_a_step / DAY

    @property
    def gpu_hours(self) -> float:
        """To the last step, of all GPUs together."""
        return self.gpus * self.steps * self.seconds_a_step / HOUR

    def drawing(self, network: str) -> float:
        """Seconds of all calls of a network for the images of the draw."""
        share = self.utilisation.head if network == "head" else self.utilisation.backbone
        made = [calls for calls in self.sampling.calls if calls.network == network]
        return sum(calls.count * seconds(calls.each, self.device, self.precision, share) for calls in made)

    @property
    def seconds_to_draw(self) -> float:
        """Until the images of the draw are there."""
        return sum(self.drawing(network) for network in ("backbone", "head", "other"))

    def seconds_with(self, transitions: int, head_steps: int) -> float:
        """As `seconds_to_draw`, for other numbers of steps: T (backbone + S head)."""
        total = 0.0
        for calls in self.sampling.calls:
            share = self.utilisation.head if calls.network == "head" else self.utilisation.backbone
            times = transitions / self.sampling.transitions
            if calls.network == "head" and calls.evaluations:
                times *= head_steps / self.sampling.draw.head_steps
            total += times * calls.count * seconds(calls.each, self.device, self.precision, share)
        return total

    def fits(self, memory: Memory) -> bool:
        """Whether a rank can hold that."""
        return memory.total <= self.device.memory * (1 - SPARE)

    def largest_micro_batch(self, memory: Memory) -> int:
        """About how many images a rank could compute at a time, if all but the activations stays as it is."""
        room = self.device.memory * (1 - SPARE) - (memory.total - memory.activations)
        return max(0, int(room * self.micro_batch / memory.activations))


def seconds(each: Cost, device: Device, precision: Precision, utilisation: float) -> float:
    """max(FLOPs / (peak x utilisation), bytes of weights read / bandwidth)."""
    computing = each.flops / (device.peak(precision) * utilisation)
    return max(computing, each.weights * width(precision) / device.bandwidth)


def plan(
    model: Model,
    shape: Shape,
    batch: int,
    device: Device | str,
    gpus: int,
    steps: int,
    *,
    text: Text | None = None,
    micro_batch: int | None = None,
    replicas: int = 1,
    precision: Precision = "bfloat16",
    utilisation: Utilisation = Utilisation(),
    draw: Draw | None = None,
) -> Plan:
    """What `steps` of a model built on the meta device take, on states of `shape` (*grid, channels).

    `batch` is that of all GPUs together, computed by each in parts of `micro_batch` (None: in one). FSDP2 shards within
    each of `replicas` groups of GPUs. `text` is the length and width of the text embedding; its encoder and the
    autoencoder are not counted. `draw` is how an image is drawn: with guidance where there is a text, unless given.
    """
    _require_meta(model)
    require_precision(precision)
    device = device if isinstance(device, Device) else device_of(device)
    steps = positive_int("The number of steps", steps)
    micro_batch = _share(positive_int("The batch", batch), positive_int("The number of GPUs", gpus), micro_batch)
    with _no_values_looked_at(model):
        drawn = sampling(model, shape, text, draw or Draw(guided=text is not None))
        once = flops(model, shape, text, micro_batch)
        kept = activations(model, shape, text, micro_batch, precision, checkpoint=False)
        less = activations(model, shape, text, micro_batch, precision, checkpoint=True) if checkpointed(model) else None
    among, accumulate = _group(gpus, replicas), batch // (gpus * micro_batch)
    memory = _memory(model, {"": kept, ", checkpointing": less}, among, precision, accumulate)
    return Plan(
        device=device,
        gpus=gpus,
        batch=batch,
        micro_batch=micro_batch,
        steps=steps,
        tokens=prod(shape[:-1]),
        precision=precision,
        utilisation=utilisation,
        parameters=parameters(model),
        trained=parameters(model, learnt=True),
        flops={part: batch // micro_batch * count for part, count in once.items()},
        activations=(kept, less),
        memory=memory,
        sampling=drawn,
    )


def _memory(
    model: Model, ways: dict[str, Activations | None], among: int, precision: Precision, accumulate: int
) -> dict[str, Memory]:
    """By way of keeping activations, and of distributing the weights: to every GPU, or `among` so many."""
    found: dict[str, Memory] = {}
    for how, used in ways.items():
        if used is not None:
            found[f"DDP{how}"] = replicated(model, used)
            found[f"FSDP2{how}"] = sharded(model, used, among, precision, accumulate)
    return found


def _require_meta(model: Model) -> None:
    if not all(p.is_meta for p in model.parameters()):
        raise ValueError('A plan allocates nothing: build the model under `with torch.device("meta"):`.')
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("Nothing of this model is trained, so there is no step to plan: leave init.freeze out.")


def _group(gpus: int, replicas: int) -> int:
    """The GPUs that hold all sharded weights between them."""
    if gpus % positive_int("The number of replicas", replicas):
        raise ValueError(f"{gpus} GPUs do not divide into {replicas} replicas of the weights.")
    return gpus // replicas


def _share(batch: int, gpus: int, micro_batch: int | None) -> int:
    """The images a GPU computes at a time."""
    parts = 1 if micro_batch is None else positive_int("The micro-batch", micro_batch)
    if batch % (gpus * parts):
        of = "" if micro_batch is None else f", {micro_batch} images at a time"
        raise ValueError(
            f"A batch of {batch} does not divide among {gpus} GPUs{of}; make it a multiple of {gpus * parts}."
        )
    return batch // gpus if micro_batch is None else micro_batch


@contextmanager
def _no_values_looked_at(model: Model) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "meta" not in str(error):
            raise
        raise ValueError(
            f"{type(model.kernel.backbone).__name__} looks at the numbers it computes, and a plan has none; "
            f"plan with a DiT or a Llama of its size ({error})."
        ) from error
