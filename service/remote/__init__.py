"""The engine in a process of its own: what HTTP workers and it say to each other, and the workers' side of it."""
