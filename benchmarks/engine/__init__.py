"""The engine: memory, linking, and microbenchmarks of the C++ library (*.cpp)."""
