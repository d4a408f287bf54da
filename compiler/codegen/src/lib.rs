//! Tile IR to MLIR to LLVM to PTX.
