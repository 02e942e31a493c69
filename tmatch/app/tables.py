"""`tables.json`: the tables of `tmatch variants`, `recipes` and `models`, which are printed without importing torch.

`make tables` writes the file from the code.
"""

import json
from pathlib import Path

FILE = Path(__file__).with_name("tables.json")
TableRow = dict[str, str]


def read_table(name: str) -> list[TableRow]:
    """The rows of one table."""
    rows: list[TableRow] = json.loads(FILE.read_text(encoding="utf-8"))[name]
    return rows


def build_tables() -> dict[str, list[TableRow]]:
    """All tables, from the code."""
    from tmatch.recipes import GROUPS, RECIPES
    from tmatch.runs.load import MODELS

    about = {name: (recipe.__doc__ or "").splitlines()[0] for name, recipe in RECIPES.items()}
    groups = [(group, name) for group, members in GROUPS.items() for name in members]
    return {
        "variants": variant_rows(),
        "recipes": [{"recipe": name, "group": group, "description": about[name]} for group, name in groups],
        "models": [{"model": name, "description": about.get(name, "")} for name in MODELS],
    }


def variant_rows() -> list[TableRow]:
    """The table of variants, in words."""
    from tmatch.variants import VARIANTS

    return [
        {
            "variant": name,
            "process": str(row.process),
            "Y": row.parametrization.symbol,
            "kernel": row.given,
            "attention": row.attention,
            "backbone": "DiT" if row.timed else "DiT, Llama",
            "times": str(row.times),
            "evaluations": row.evaluations,
        }
        for name, row in VARIANTS.items()
    ]


if __name__ == "__main__":
    FILE.write_text(json.dumps(build_tables(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
