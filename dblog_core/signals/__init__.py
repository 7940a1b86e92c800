"""Signals: requests that reach a running capture through a table of the source, a file, HTTP or Kafka.

message          what a signal asks for: Debezium's form, translated into a dump request or an order to running dumps
sql_conditions   the SQL of `additional-conditions`, as far as typed filters say exactly the same
inbox            signals in the state store, each once by its id, and what became of them
processor        carries out what lies in the inbox, in order
file             lines that are appended to a file
kafka            messages of a topic
table            rows of a table in the source, which come through its log
http             HTTP, for callers that have the token; http_limits: its limits and its certificate
"""
