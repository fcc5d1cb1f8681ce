"""What a model needs on its cards and in its host, before anything is started."""
