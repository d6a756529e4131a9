"""Modules made of ops: attention, positions, feed-forward, norms, blocks, embeddings, recurrent and gated cells."""
