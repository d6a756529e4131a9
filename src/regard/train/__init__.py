"""The loop, optimiser, schedule and checkpoints. Knows tasks, no family."""
