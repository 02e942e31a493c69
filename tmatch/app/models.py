"""`tmatch models`."""

from tmatch.app.tables import print_table


def main(json: bool = False) -> None:
    """List the trained models that come with the package.

    Args:
        json: print JSON instead of a table.
    """
    note = "Use one with: tmatch generate 'a red circle' --model MODEL"
    print_table("models", {"model": 20, "description": None}, note, json)
