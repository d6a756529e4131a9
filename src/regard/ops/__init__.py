"""Pure tensor functions: attention, masks, score terms, positions, losses. No modules, no state."""
