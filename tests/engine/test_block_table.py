from __future__ import annotations

from engine.kv.block_table import BlockTables


def test_rows_are_padded_with_scratch_and_clean_when_reused() -> None:
    tables = BlockTables(max_blocks=4)
    row = tables.take([5, 6])
    tables.put(row, 2, 7)
    assert tables.array[row].tolist() == [5, 6, 7, 0]
    tables.give_back(row)
    again = tables.take([9])
    assert again == row
    assert tables.array[again].tolist() == [9, 0, 0, 0]


def test_rows_never_run_out_and_keep_their_content() -> None:
    tables = BlockTables(max_blocks=2)
    rows = [tables.take([number, number + 1]) for number in range(1, 101)]
    assert len(set(rows)) == 100
    for number, row in enumerate(rows, 1):
        assert tables.array[row].tolist() == [number, number + 1]
