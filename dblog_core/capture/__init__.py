"""The log capture: leader, sequencer, unseen events, configuration that changes."""
