"""The deterministic simulation: seeds, planted bugs, and seeds that once found something."""
