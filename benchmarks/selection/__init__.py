"""Small programs in which CUDA graphs lose or hardly win: whether PyGraph is never slower."""
