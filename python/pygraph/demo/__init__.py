"""`pygraph demo`: what PyGraph does on this machine."""
