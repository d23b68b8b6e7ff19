"""`python -m analysis.orders`: one row per case, with the searched order between the bound and the best named one."""

from __future__ import annotations

import pandas as pd

from analysis import orders


def test_the_table_has_bounds_named_and_searched_orders(tmp_path, capsys):
    assert orders.main(["--seconds", "1", "--solver", "0", "--cases", "2", "--report", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "orders.csv")
    assert list(zip(table["K"], table["M"], table["cap"], strict=True)) == [(2, 8, 2), (4, 8, 3)]
    assert (table["bound"] <= table["found"]).all()
    assert (table["found"] <= table["named"]).all()
    assert "solver" not in table
    assert (tmp_path / "orders.svg").exists()
    assert "orders.csv" in capsys.readouterr().out
