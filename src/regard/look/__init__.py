"""Traces and what is made of them: measures, pages, pictures. Knows traces, no model."""
