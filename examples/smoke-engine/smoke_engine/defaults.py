"""What holds when neither a flag nor a request says otherwise."""

# The command line.
DEFAULT_HOST = "0.0.0.0"  # a server in a container
DEFAULT_PORT = 8000
DEFAULT_MODEL = "smoke"
DEFAULT_MAX_MODEL_LEN = 4096  # tokens of prompt and answer together

# A completion request.
DEFAULT_MAX_TOKENS = 16

# The KV cache that the engine pretends to have, in tokens.
KV_CACHE_TOKENS = 65536
