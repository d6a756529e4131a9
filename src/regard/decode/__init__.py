"""Greedy, beam, sampling, contrastive and speculative search over one contract, `step(tokens, state)`; no family."""
