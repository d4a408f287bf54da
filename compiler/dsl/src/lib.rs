//! The words that Tegula kernels are written in.
