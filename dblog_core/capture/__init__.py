"""The log capture: leader, sequencer, recovery, configuration that changes."""
