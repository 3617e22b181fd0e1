"""Several processes that serve as one: a supervisor, which accepts connections, and workers, which answer them."""
