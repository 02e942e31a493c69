"""The table of mutants applies to the code as it is."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def test_every_mutant_applies_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make mutate` runs them."""
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    from mutate import table

    mutants = table()
    assert [problem for mutant in mutants if (problem := mutant.problem())] == []
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 64
    assert all(mutant.old != mutant.new for mutant in mutants)
