"""Serve commands, whatever they are read from, and the rules over them."""
