"""Tables whose copies are not right: what a capture requests and records so that they become so."""
