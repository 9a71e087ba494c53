"""Nine models in all modes: `./run demo` on a machine with a GPU."""
