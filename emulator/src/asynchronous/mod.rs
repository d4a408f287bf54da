//! The asynchronous units' state, each a machine of its own without warps or schedulers: mbarriers, tensor maps and the copies they describe,
//! reductions of bulk copies, the register pool of `setmaxnreg`.
//!
//! They say what an operation does and whether it was legal. *When* an asynchronous operation takes effect, who is blocked meanwhile, and what
//! is a hazard is the machine's business.

mod copies;
mod footprint;
mod mbarrier;
mod reduction;
mod register_pool;
mod tensor_map;

pub use copies::{ClusterAddress, GlobalSide, Run, gather, scatter};
pub use footprint::Footprint;
pub use mbarrier::{Mbarrier, MbarrierFault, Token};
pub use reduction::{Reduction, ReductionType};
pub use register_pool::{PoolFault, RegisterPool};
pub use tensor_map::{
    BoxRow, Fill, TENSOR_MAP_BYTES, TensorDataType, TensorMap, TensorMapBuilder, TensorMapError,
};
