"""Which tables have to be dumped since another one has their name, or partitions came or went: by their oids alone."""

from __future__ import annotations

import pytest

from dblog_core.model.table_identity import (
    entries_to_remember,
    find_names,
    find_other_tables,
    leave_out,
    write_entry,
)

T = write_entry("public.t", 10)
P = write_entry("public.t", 10, 11)
Q = write_entry("public.t", 10, 12)


@pytest.mark.parametrize(
    ("tables_before", "now", "tables_found"),
    [
        ({T}, {T}, set()),
        ({T}, {write_entry("public.t", 20)}, {"public.t"}),  # swapped, or dropped and made again
        ({T}, {T, write_entry("public.u", 20)}, {"public.u"}),
        (
            {T, write_entry("public.u", 20)},
            {write_entry("public.u", 10), write_entry("public.t", 20)},
            {"public.t", "public.u"},
        ),
        ({T}, set(), set()),  # gone: there is nothing to dump
        ({"public.t"}, {T, P}, set()),  # remembered by an older version
        ({"public.t"}, {T, write_entry("public.u", 20)}, {"public.u"}),
        ({T, P}, {T, P, Q}, set()),  # made as a partition
        ({T, P}, {T, P, f"{Q}!"}, {"public.t"}),  # attached
        ({T, P, Q}, {T, P, f"{Q}!"}, set()),  # altered since
        ({T, P, Q}, {T, P}, {"public.t"}),  # detached or dropped
        ({T, P}, {write_entry("public.x", 10), write_entry("public.x", 10, 11)}, {"public.x"}),  # renamed
        ({write_entry("public.a@b", 10)}, {write_entry("public.a@b", 11)}, {"public.a@b"}),
    ],
)
def test_a_table_is_another_by_its_oid_and_the_oids_of_its_partitions(
    tables_before: set[str], now: set[str], tables_found: set[str]
) -> None:
    assert find_other_tables(tables_before, now) == tables_found
    assert find_other_tables(entries_to_remember(now), now) == set()


def test_tables_that_are_left_out_are_so_with_their_partitions() -> None:
    u = write_entry("public.u", 20)
    brought = write_entry("public.t", 10, 13, brought_rows=True)
    assert leave_out({T, P, brought, u}, {"public.t"}) == {u}
    assert leave_out({T, u}, frozenset()) == {T, u}
    assert find_names({T, P, brought, u}) == {"public.t", "public.u"}
    assert find_other_tables({u}, {T, P, u}) == {"public.t"}, "what was left out is another table once it is there"
