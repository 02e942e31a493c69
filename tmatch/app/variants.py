"""`tmatch variants`."""

from tmatch.app.tables import print_table

COLUMN_WIDTHS = {"variant": 16, "process": 24, "Y": 9, "times": 24}
NOTE = "NFE: backbone evaluations per image, for T transitions of n tokens or K unmasking iterations."
KERNEL = "Kernel: {kernel}\nAttention: {attention}. Backbone: {backbone}. NFE: {evaluations}."


def main(json: bool = False) -> None:
    """List the methods: process x parametrization x kernel x times.

    Args:
        json: print JSON instead of tables.
    """
    print_table("variants", COLUMN_WIDTHS, NOTE, json, lambda row: KERNEL.format(**row))
