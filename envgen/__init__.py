"""Tool documents in, executable self-proving environments out. See `envgen.interface`."""
