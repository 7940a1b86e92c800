"""Signals: requests that reach a running capture through a table of the source, a file, HTTP or Kafka.

message      what a signal asks for: Debezium's form, translated into a dump request or a word to running dumps
conditions   the SQL of `additional-conditions`, as far as typed filters say exactly the same
inbox        signals in the state store, each once by its id, and what became of them
desk         carries out what lies in the inbox, in order
file         lines that are appended to a file
kafka        messages of a topic
table        rows of a table in the source, which come through its log
endpoint     HTTP, for whoever has the token
"""
