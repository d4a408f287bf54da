//! Facts about a kernel that passes and the code generator ask for; nothing here changes a kernel.

pub mod access;
pub mod axis_info;
pub mod equal_values;
pub mod tensor_copy;
pub mod wgmma;
pub mod wide_dots;
