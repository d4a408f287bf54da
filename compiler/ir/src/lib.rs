//! Tile IR: types, operations, layouts, passes and the tile interpreter.
