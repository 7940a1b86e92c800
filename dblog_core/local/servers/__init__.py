"""Real servers on this machine, for the demo, the stack and the tests."""
