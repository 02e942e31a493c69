"""LoRA: low-rank changes to the linear layers of a backbone."""

from torch import Tensor, nn

from tmatch.extras import needs_extra

BASE = ".base_layer."


def add_lora(backbone: nn.Module, rank: int) -> None:
    """Replace every W of the blocks by W + B A, with B = 0 at first, and train A and B only."""
    with needs_extra("LoRA", "lora"):
        from peft import LoraConfig, inject_adapter_in_model
    layers = [
        name for name, module in backbone.named_modules() if isinstance(module, nn.Linear) and name.startswith("blocks")
    ]
    if not layers:
        raise ValueError(f"{type(backbone).__name__} has no blocks to apply LoRA to: leave out init.lora.")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=layers), backbone)


def merge_lora(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under their plain names, with W + B A merged."""
    plain: dict[str, Tensor] = {}
    for name, weight in weights.items():
        layer, base, kind = name.partition(BASE)
        if base and kind == "weight":
            down, up = (weights[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            weight = weight + up @ down
        if base:
            plain[f"{layer}.{kind}"] = weight
        elif ".lora_" not in name:
            plain[name] = weight
    return plain
