//! Plans priced to the byte: arena, limits, budget, verdict and inverse solve
