"""`tmatch recipes`."""

from tmatch.app.tables import print_table

GROUP_TITLES = {
    "shapes": "shapes: synthetic images, on a CPU; `tmatch models` lists those with weights",
    "folder": "folder: your own images, small enough for memory",
    "shards": "shards: data encoded by `tmatch prepare`, about 5M parameters",
    "sizes": "sizes: shards on one GPU or a few, S to XL",
    "paper": "paper: the paper's 1.7B models, on shards",
}


def main(json: bool = False) -> None:
    """List the recipes that `tmatch train` trains.

    Args:
        json: print JSON instead of tables.
    """
    note = "Train one with: tmatch train RECIPE --out DIR"
    print_table("recipes", {"recipe": 24, "description": None}, note, json, lambda row: GROUP_TITLES[row["group"]])
