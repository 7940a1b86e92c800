"""The lake engine: merges staged rows into Delta tables with Arrow, in one process or as a share of an executor.

It imports no Spark. Its packages, in the order in which they import each other:

  tables/    a lake table: its columns, its log, how it is created and altered
  events/    staged events, and the fold that keeps the newest event of each key
  history/   the history of rows beside a table
  merging/   one merge: the records that make it exactly once, and the commits of each table
  tasks/     maintenance, replay, rebuild, reset, adoption
"""
