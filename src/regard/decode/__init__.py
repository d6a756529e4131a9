"""Greedy, beam and sampling search over one small contract, `step(tokens, state)`. Knows no family."""
