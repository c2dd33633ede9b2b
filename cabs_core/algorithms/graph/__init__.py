"""The feedback graph of CABS: affinity of two arms, probability of an edge, sampled graph; IQR rule."""
