"""Small programs with one thing each that stands in the way of CUDA graphs."""
